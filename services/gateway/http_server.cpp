#include "services/gateway/http_server.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fd.hpp"

namespace wisp::gateway {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {
constexpr std::string_view kFull =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: "
    "1\r\n"
    "Content-Length: 118\r\n\r\n"
    "{\"error\":{\"message\":\"too many connections are open\",\"type\":\"server_error\",\"param\":null,"
    "\"code\":\"too_many_connections\"}}";
constexpr std::size_t kFullBody = kFull.size() - (kFull.find("\r\n\r\n") + 4);
static_assert(kFullBody == 118);
}  // namespace

Status HttpServer::listen(int fd) {
  int listening = 0;
  socklen_t size = sizeof listening;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0)
    return io_error("descriptor " + std::to_string(fd) + " is not a listening socket");
  Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return io_error(std::string("duplicating a listening socket: ") + std::strerror(errno));
  // Two lives of the gateway never accept at once, but a client may leave between the wake-up and accept().
  if (::fcntl(copy.get(), F_SETFL, ::fcntl(copy.get(), F_GETFL) | O_NONBLOCK) != 0)
    return io_error(std::string("listening socket: ") + std::strerror(errno));
  error_code ec;
  auto l = std::make_unique<Listener>(Listener{asio::posix::stream_descriptor(io_)});
  l->socket.assign(copy.get(), ec);
  if (ec) return io_error("listening socket: " + ec.message());
  (void)copy.release();
  listeners_.push_back(std::move(l));
  wait(*listeners_.back());
  return {};
}

void HttpServer::wait(Listener& l) {
  l.waiting = true;
  l.socket.async_wait(asio::posix::stream_descriptor::wait_read, [this, &l](error_code ec) {
    l.waiting = false;
    if (!ec) accept(l);
  });
}

void HttpServer::accept(Listener& l) {
  for (;;) {
    const int fd = ::accept4(l.socket.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      welcome(fd);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return wait(l);
    // Out of descriptors or memory: tick() tries again.
    spdlog::warn("accept: {}", std::strerror(errno));
    return;
  }
}

void HttpServer::welcome(int fd) {
  Fd owned(fd);
  if (sessions_.size() >= kMaxConnections) make_room();
  if (sessions_.size() >= kMaxConnections) {
    [[maybe_unused]] const auto n = ::send(fd, kFull.data(), kFull.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  int family = 0;
  socklen_t size = sizeof family;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) return;
  const int on = 1;
  if (family != AF_UNIX) (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Session::Socket socket(io_);
  error_code ec;
  socket.assign(asio::generic::stream_protocol(family, family == AF_UNIX ? 0 : IPPROTO_TCP), fd, ec);
  if (ec) return;
  (void)owned.release();
  auto session = std::make_shared<Session>(
      std::move(socket), handler_, [this](Session& s, std::uint64_t bytes) { return reserve(s, bytes); });
  sessions_.push_back(session);
  session->start();
}

bool HttpServer::reserve(const Session& asking, std::uint64_t bytes) const {
  std::uint64_t used = 0;
  for (const auto& s : sessions_)
    if (s.get() != &asking && !s->closed()) used += s->reserved();
  return bytes == 0 || used == 0 || used + bytes <= kMaxBodies * handler_.max_body_bytes();
}

/// Clients that only connect lock nobody out: who has sent nothing of a request gives way, then who has sent
/// nothing more of one, the longest first.
void HttpServer::make_room() {
  forget_closed();
  if (sessions_.size() < kMaxConnections) return;
  const auto rank = [](const auto& s) { return std::pair(!s->idle(), s->waits_since()); };
  const auto first = std::min_element(sessions_.begin(), sessions_.end(),
                                      [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  if ((*first)->waits_since() == ~std::uint64_t{0}) return;
  (*first)->abandon();
  forget_closed();
}

void HttpServer::forget_closed() {
  std::erase_if(sessions_, [](const std::shared_ptr<Session>& s) { return s->closed(); });
}

void HttpServer::tick() {
  const std::uint64_t now = handler_.engine_now();
  const auto all = sessions_;  // a session that ends may change the list
  for (const auto& s : all) s->check_idle(now);
  forget_closed();
  for (const auto& l : listeners_)
    if (!l->waiting) accept(*l);
}

}  // namespace wisp::gateway
