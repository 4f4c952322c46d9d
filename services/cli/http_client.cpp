#include "services/cli/http_client.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

namespace wisp::cli {

namespace {

constexpr int kFirstPauseMs = 20;
constexpr int kLongestPauseMs = 500;
/// How often a wait looks whether the pipeline is still there.
constexpr int kCheckMs = 500;
/// Answers "come back later" in a row after which they are believed: about half a minute.
constexpr int kMostLater = 60;

/// n of "<request>/<n>".
std::optional<std::uint64_t> number_of(const std::string& id) {
  const auto slash = id.rfind('/');
  if (slash == std::string::npos) return std::nullopt;
  std::uint64_t n = 0;
  const char* const end = id.data() + id.size();
  const auto parsed = std::from_chars(id.data() + slash + 1, end, n);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  return n;
}

Error refusal(int status, const std::string& body) {
  std::string text = "the gateway answered with status " + std::to_string(status);
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const auto& e = json["error"];
    if (e.is_string())
      text = e.get<std::string>();
    else if (e.is_object() && e.contains("message") && e["message"].is_string())
      text = e["message"].get<std::string>();
  }
  switch (status) {
    case 400:
    case 413:
    case 422:
      return invalid(text);
    case 404:
      return not_found(text);
    case 429:
      return exhausted(text);
    case 503:
      return unavailable(text);
    default:
      return io_error(text);
  }
}

/// Names the POST, so that one repeated before its first answer does not start a second generation.
std::string random_key() {
  std::random_device random;
  char text[40];
  std::snprintf(text, sizeof text, "wisp-%08x%08x", random(), random());
  return text;
}

/// One streamed request over as many connections as it takes.
class Stream {
 public:
  Stream(const StreamRequest& request, const StreamHandlers& handlers, const StreamWorld& world)
      : request_(request), handlers_(handlers), world_(world), key_(random_key()) {}

  Result<StreamEnd> run() {
    int pause = kFirstPauseMs;
    while (true) {
      const std::uint64_t before = events_;
      WISP_ASSIGN(const Outcome outcome, once());
      if (outcome == Outcome::kDone) return end_;
      if (outcome == Outcome::kGivenUp) return given_up();
      WISP_TRY(world_.check());
      if (events_ != before) pause = kFirstPauseMs;
      if (!wait(-1, 0, pause)) return given_up();
      pause = std::min(2 * pause, kLongestPauseMs);
      if (!end_.request.empty()) ++end_.resumes;
    }
  }

 private:
  enum class Outcome { kDone, kGivenUp, kBroken };

  std::string head() const {
    std::string text = "POST " + request_.target +
                       " HTTP/1.1\r\nHost: wisp\r\nContent-Type: application/json\r\n" +
                       "Accept: text/event-stream\r\nConnection: close\r\nIdempotency-Key: " + key_ +
                       "\r\nContent-Length: " + std::to_string(request_.body.size()) + "\r\n";
    for (const auto& [name, value] : request_.headers) text += name + ": " + value + "\r\n";
    if (!end_.request.empty())
      text += "Last-Event-ID: " + end_.request + "/" + (last_ ? std::to_string(*last_) : "-") + "\r\n";
    return text + "\r\n";
  }

  Result<StreamEnd> given_up() {
    if (!failed_.ok()) return failed_.error();
    end_.interrupted = true;
    return end_;
  }

  /// Waits for `events` on the socket (fd -1: only for the time) and serves the watches meanwhile. False: a
  /// watch gives up, or the pipeline is gone (`failed_`).
  bool wait(int fd, short events, int timeout_ms) {
    while (true) {
      std::vector<pollfd> fds{{fd, events, 0}};
      for (const Watch& w : world_.watches) fds.push_back({w.fd(), POLLIN, 0});
      const int n = ::poll(fds.data(), fds.size(), timeout_ms < 0 ? kCheckMs : timeout_ms);
      for (std::size_t i = 0; n > 0 && i < world_.watches.size(); ++i)
        if (fds[i + 1].revents != 0 && !world_.watches[i].readable()) return false;
      if (n > 0 && (fd < 0 || fds[0].revents != 0)) return true;
      if (n == 0) {
        failed_ = world_.check();
        if (!failed_.ok()) return false;
        if (timeout_ms >= 0) return true;
      }
    }
  }

  /// kDone: all sent.
  Outcome send_all(int fd, const std::string& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0)
        sent += static_cast<std::size_t>(n);
      else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        return Outcome::kBroken;
      else if (!wait(fd, POLLOUT, -1))
        return Outcome::kGivenUp;
    }
    return Outcome::kDone;
  }

  void take_event(const SseEvent& e) {
    if (e.data == "[DONE]") {
      done_ = true;
      return;
    }
    const auto n = number_of(e.id);
    if (n && last_ && *n <= *last_) return;  // a replay that began too early
    if (n) last_ = n;
    ++events_;
    later_ = 0;
    if (handlers_.event) handlers_.event(e.data);
  }

  Result<Outcome> once() {
    auto fd = connect_unix(request_.socket, SOCK_STREAM);
    // The launcher holds the listening socket across restarts: a missing one was removed by somebody.
    if (!fd.ok() && ::access(request_.socket.c_str(), F_OK) != 0 && errno == ENOENT)
      return unavailable(request_.socket + " was removed while the pipeline runs; start it again");
    if (!fd.ok()) return Outcome::kBroken;
    if (const Outcome sent = send_all(fd->get(), head() + request_.body); sent != Outcome::kDone) return sent;

    ResponseReader response;
    SseReader sse;
    std::string error_body;
    const SseReader::Sink sink{[&](const SseEvent& e) { take_event(e); },
                               [&](std::string_view c) {
                                 if (handlers_.comment) handlers_.comment(c);
                               }};
    const auto body = [&](std::string_view bytes) {
      if (response.status() != 200)
        error_body += bytes;
      else
        sse.feed(bytes, sink);
    };
    while (!done_ && !response.complete()) {
      if (!wait(fd->get(), POLLIN, -1)) return Outcome::kGivenUp;
      char buffer[16384];
      const ssize_t n = ::recv(fd->get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) break;
      const bool had_head = response.head_complete();
      WISP_TRY(response.feed({buffer, static_cast<std::size_t>(n)}, body));
      if (!had_head && response.head_complete() && !response.header("x-wisp-request").empty())
        end_.request = response.header("x-wisp-request");
    }
    if (done_) return Outcome::kDone;
    if (!response.head_complete() || response.status() == 200) return Outcome::kBroken;
    // A gateway that says when to come back expects a stage that is starting.
    if (response.status() == 503 && !response.header("retry-after").empty() && ++later_ < kMostLater)
      return Outcome::kBroken;
    return refusal(response.status(), error_body);
  }

  const StreamRequest& request_;
  const StreamHandlers& handlers_;
  const StreamWorld& world_;
  std::string key_;
  StreamEnd end_;
  std::optional<std::uint64_t> last_;
  std::uint64_t events_ = 0;
  Status failed_;
  int later_ = 0;
  bool done_ = false;
};

}  // namespace

Result<Fd> connect_unix(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return invalid("socket path " + path + " is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return io_error(std::string("socket: ") + std::strerror(errno));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return unavailable(path + ": " + std::strerror(errno));
  return fd;
}

Result<StreamEnd> stream(const StreamRequest& request, const StreamHandlers& handlers,
                         const StreamWorld& world) {
  return Stream(request, handlers, world).run();
}

}  // namespace wisp::cli
