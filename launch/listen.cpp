#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "launch/run_dir.hpp"

namespace wisp::launch {

namespace {

constexpr int kBacklog = 128;

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

/// Binds and listens on one address. Leaves errno for the caller.
Fd listen_on(const addrinfo& a) {
  Fd fd(::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC, a.ai_protocol));
  if (!fd.valid()) return fd;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), a.ai_addr, a.ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const int reason = errno;
    fd.reset();
    errno = reason;
  }
  return fd;
}

}  // namespace

Result<TcpListener> listen_tcp(const std::string& host, std::int32_t port) {
  if (port < 0 || port > 65535)
    return invalid("port " + std::to_string(port) +
                   " does not exist; give --port from 1 to 65535, or 0 for any");
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string service = std::to_string(port);
  const int rc = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &list);
  if (rc != 0) return invalid("--host " + host + ": " + ::gai_strerror(rc));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  int reason = 0;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    TcpListener out;
    out.socket = listen_on(*a);
    if (out.socket.valid()) {
      out.port = port_of(out.socket.get());
      return out;
    }
    if (reason != EADDRINUSE) reason = errno;
  }
  const std::string where = "port " + service + " on " + (host.empty() ? "all addresses" : host);
  if (reason == EADDRINUSE)
    return unavailable(where +
                       " is in use by another program; choose another with --port N, or --port 0 for any " +
                       "free one");
  return io_error(where + ": " + std::strerror(reason));
}

Result<Fd> listen_unix(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return invalid("the path of the socket " + path +
                   " is too long; set XDG_RUNTIME_DIR to a shorter directory");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return io_error("socket " + path + ": " + std::strerror(errno));
  // The directory is 0700 already; the mode of the socket itself is the second fence.
  ::fchmod(fd.get(), 0600);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), kBacklog) != 0)
    return io_error("socket " + path + ": " + std::strerror(errno));
  return fd;
}

}  // namespace wisp::launch
