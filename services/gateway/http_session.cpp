#include "services/gateway/http_session.hpp"

#include <sys/socket.h>

#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <cstdio>

#include "service/crash_point.hpp"
#include "services/gateway/openai_api.hpp"

namespace wisp::gateway {

namespace http = boost::beast::http;
namespace asio = boost::asio;
using boost::system::error_code;

namespace {
constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kReadTimeoutNs = 30 * kSecond;        // no byte of a request that has begun
constexpr std::uint64_t kKeepAliveTimeoutNs = 120 * kSecond;  // between two requests
constexpr std::uint64_t kWriteTimeoutNs = 300 * kSecond;      // a client that takes nothing of its answer
constexpr std::uint64_t kDrainTimeoutNs = 2 * kSecond;
constexpr std::uint64_t kMaxDrainBytes = std::uint64_t{32} << 20;

int status_of(error_code ec) {
  if (ec == http::error::body_limit) return 413;
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) return 431;
  return ec.category() == http::make_error_code(http::error::bad_method).category() ? 400 : 0;
}

std::string header_of(const http::request<http::string_body>& r, const char* name) {
  const auto value = r[name];
  return {value.data(), value.size()};
}
/// Whether a browser's page from elsewhere asks: one whose origin is not the address asked, or whose address
/// is a name other than localhost, which somebody's own name server may have pointed here.
bool is_foreign(const std::string& origin, const std::string& host) {
  if (origin.empty()) return false;
  if (origin != "http://" + host && origin != "https://" + host) return true;
  const bool bracketed = host.starts_with('[');
  const std::string name = host.substr(0, bracketed ? host.find(']') + 1 : host.find(':'));
  const bool number = name.find_first_not_of("0123456789.") == std::string::npos;
  return !(bracketed || number || name == "localhost");
}
}  // namespace

Session::Session(Socket socket, HttpHandler& handler, Reserve reserve)
    : socket_(std::move(socket)), handler_(handler), reserve_(std::move(reserve)) {
  moved();
}

// --- reading ---

void Session::read_head() {
  phase_ = Phase::kReading;
  tag = 0;
  reserved_ = 0;
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(handler_.max_body_bytes());
  moved();
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code ec, std::size_t) { self->on_head(ec); });
}

void Session::on_head(error_code ec) {
  if (phase_ != Phase::kReading) return;
  if (ec) return refuse(ec);
  moved();
  const auto& request = parser_->get();
  keep_alive_ = request.keep_alive();
  chunked_ = request.version() >= 11;
  const auto length = parser_->content_length();
  const std::uint64_t need = length ? *length : parser_->chunked() ? handler_.max_body_bytes() : 0;
  if (!reserve_(*this, need))
    return refuse(503, "too many large requests are being received; repeat this one in a second");
  reserved_ = need;
  const auto expect = request[http::field::expect];
  if (!boost::beast::iequals(expect, "100-continue")) return read_body();
  out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this()](error_code e, std::size_t) {
    if (self->phase_ != Phase::kReading) return;
    if (e) return self->close();
    self->read_body();
  });
}

void Session::read_body() {
  if (parser_->is_done()) return dispatch();
  http::async_read_some(socket_, buffer_, *parser_,
                        [self = shared_from_this()](error_code ec, std::size_t) { self->on_body(ec); });
}

void Session::on_body(error_code ec) {
  if (phase_ != Phase::kReading) return;
  if (ec) return refuse(ec);
  moved();
  read_body();
}

void Session::dispatch() {
  phase_ = Phase::kAnswering;
  first_request_ = false;
  auto message = parser_->release();
  HttpRequest r;
  r.method = std::string(message.method_string());
  const auto target = message.target();
  r.path = std::string(target.substr(0, target.find('?')));
  r.body = std::move(message.body());
  r.last_event_id = header_of(message, "Last-Event-ID");
  r.default_max_all = header_of(message, "X-Wisp-Default-Max") == "all";
  r.foreign_page = is_foreign(header_of(message, "Origin"), header_of(message, "Host"));
  watch();
  handler_.on_request(shared_from_this(), std::move(r));
}

void Session::refuse(error_code ec) {
  const int status = status_of(ec);
  if (status == 0 || ec == http::error::end_of_stream || ec == http::error::partial_message) return close();
  std::string message = "malformed HTTP: " + ec.message();
  if (status == 413)
    message = "the body is larger than " + std::to_string(handler_.max_body_bytes()) +
              " bytes, which no prompt for this context needs";
  if (status == 431) message = "the header is larger than " + std::to_string(kMaxHeaderBytes) + " bytes";
  refuse(status, message);
}

void Session::refuse(int status, const std::string& message) {
  keep_alive_ = false;
  phase_ = Phase::kAnswering;
  reply({status, error_body({status, message, "", "", 0}), status == 503 ? "Retry-After: 1\r\n" : ""});
}

// --- the client's life while a request is open ---

void Session::watch() {
  if (watching_) return;
  watching_ = true;
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](error_code ec) { self->on_readable(ec); });
}

void Session::on_readable(error_code ec) {
  watching_ = false;
  if (phase_ != Phase::kAnswering || ec == asio::error::operation_aborted) return;
  char byte;
  const ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return watch();
  // More bytes are the next request, which waits in the socket; a failing write tells of the end then.
  if (n > 0) return;
  gone();
}

void Session::gone() {
  if (phase_ == Phase::kClosed) return;
  const bool open = phase_ == Phase::kAnswering;
  close();
  if (open) handler_.on_gone(*this);
}

void Session::abandon() {
  close();
}

void Session::close() {
  phase_ = Phase::kClosed;
  error_code ignored;
  socket_.close(ignored);
}

void Session::check_idle(std::uint64_t now) {
  std::uint64_t limit = 0;
  if (phase_ == Phase::kReading)
    limit = first_request_ || buffer_.size() > 0 || reserved_ > 0 ? kReadTimeoutNs : kKeepAliveTimeoutNs;
  if (phase_ == Phase::kAnswering && writing_) limit = kWriteTimeoutNs;
  if (phase_ == Phase::kDraining) limit = kDrainTimeoutNs;
  if (limit != 0 && now > moved_ns_ + limit) gone();
}

// --- answering ---

std::string Session::head_lines(int status, std::string_view type, const std::string& headers) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string s =
      "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason.data(), reason.size()) + "\r\n";
  s += "Server: wisp/" WISP_VERSION "\r\nContent-Type: ";
  s += type;
  s += "\r\n" + headers;
  s += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return s;
}

void Session::reply(const HttpReply& r) {
  if (phase_ != Phase::kAnswering) return;
  body_done();
  out_ = head_lines(r.status, "application/json", r.headers);
  out_ += "Content-Length: " + std::to_string(r.body.size()) + "\r\n\r\n" + r.body;
  write_out(true, 0);
}

void Session::begin_stream(const std::string& headers) {
  if (phase_ != Phase::kAnswering) return;
  body_done();
  // The end of an HTTP/1.0 stream is the end of its connection.
  if (!chunked_) keep_alive_ = false;
  out_ = head_lines(200, "text/event-stream; charset=utf-8",
                    "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n" + headers);
  out_ += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  write_out(false, 0);
}

void Session::send(std::string_view text, bool last, std::size_t cut) {
  if (!idle_writer()) return;
  out_.clear();
  if (!text.empty() && chunked_) {
    char size[20];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    out_ = size;
  }
  if (cut != 0) cut += out_.size();
  out_ += text;
  if (!text.empty() && chunked_) out_ += "\r\n";
  if (last && chunked_) out_ += "0\r\n\r\n";
  write_out(last, cut);
}

void Session::write_out(bool last, std::size_t cut) {
  writing_ = true;
  moved();
  auto self = shared_from_this();
  if (cut == 0 || cut >= out_.size()) {
    asio::async_write(socket_, asio::buffer(out_),
                      [self, last](error_code ec, std::size_t) { self->on_written(ec, last); });
    return;
  }
  asio::async_write(socket_, asio::buffer(out_, cut), [self, last, cut](error_code ec, std::size_t) {
    if (ec) return self->on_written(ec, last);
    service::crash_point(service::CrashPoint::kSseHalf);
    asio::async_write(self->socket_, asio::buffer(self->out_) + cut,
                      [self, last](error_code e, std::size_t) { self->on_written(e, last); });
  });
}

void Session::on_written(error_code ec, bool last) {
  writing_ = false;
  if (phase_ != Phase::kAnswering) return;
  if (ec) return gone();
  moved();
  if (last) return finish_answer();
  handler_.on_writable(*this);
}

void Session::finish_answer() {
  if (tag != 0) handler_.on_answered(*this);
  if (phase_ != Phase::kAnswering) return;
  if (keep_alive_) return read_head();
  // Closing with unread bytes would reset the connection, and the client might lose our answer.
  phase_ = Phase::kDraining;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  drain();
}

void Session::drain() {
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(16 * 1024),
                          [self = shared_from_this()](error_code ec, std::size_t n) {
                            if (self->phase_ != Phase::kDraining) return;
                            self->drained_ += n;
                            if (ec || self->drained_ > kMaxDrainBytes) return self->close();
                            self->drain();
                          });
}

}  // namespace wisp::gateway
