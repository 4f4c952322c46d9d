#pragma once
// clang-format off
#include <utility>  // Asio 1.74 uses std::exchange in C++20 without it
// clang-format on
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace wisp::gateway {

/// Headers of real clients take a few KiB; a longer one is an attack or a cookie of somebody else.
inline constexpr std::uint32_t kMaxHeaderBytes = 32 * 1024;

struct HttpRequest {
  std::string method;
  std::string path;  ///< without the query
  std::string body;
  std::string last_event_id;  ///< "" = not given
  bool default_max_all = false;
  bool foreign_page = false;  ///< a browser sent it for a page of another site
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string headers;  ///< further lines, each ended by CR LF
};

class Session;

/// Whoever answers requests. All calls come from the stage's thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual void on_request(const std::shared_ptr<Session>& session, HttpRequest request) = 0;
  /// The bytes of the last send() are with the kernel: more may be sent.
  virtual void on_writable(Session& session) = 0;
  /// The last bytes of the answer are with the kernel; the session goes on to its next request.
  virtual void on_answered(Session& session) = 0;
  /// The client is gone while its request was open. Nothing may be sent any more.
  virtual void on_gone(Session& session) = 0;
  virtual std::uint64_t engine_now() const = 0;
  /// The longest body that is taken.
  virtual std::uint64_t max_body_bytes() const = 0;
};

/// One connection. Its states follow each other: reading a request, answering it, reading the next; draining
/// at the end. It holds at most one batch of bytes to write. Kept alive by its pending operations and its
/// server.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  /// Asks for memory to hold a body; false where too much is in use.
  using Reserve = std::function<bool(Session&, std::uint64_t bytes)>;

  Session(Socket socket, HttpHandler& handler, Reserve reserve);
  void start() { read_head(); }

  /// Answers the open request with one body (JSON).
  void reply(const HttpReply& r);
  /// Opens a stream of events. `headers`: further lines, each ended by CR LF.
  void begin_stream(const std::string& headers);
  /// Sends a piece of the stream; only when idle_writer(). `last` ends the answer. `cut` not 0: a test wants
  /// the process to die after that many bytes of `text`.
  void send(std::string_view text, bool last, std::size_t cut = 0);
  /// Whether send() may be called.
  bool idle_writer() const { return phase_ == Phase::kAnswering && !writing_; }
  /// What became of the body is gone: its memory no longer counts.
  void body_done() { reserved_ = 0; }
  /// Ends the connection without telling the handler: another connection took its place, or all is over.
  void abandon();

  /// The request that this connection waits for; 0 = none. Set by the handler.
  std::uint64_t tag = 0;
  bool closed() const { return phase_ == Phase::kClosed; }
  /// Whether it is open and nothing of a request has come.
  bool idle() const { return phase_ == Phase::kReading && buffer_.size() == 0 && !parser_->got_some(); }
  /// Since when nothing came of the request that it reads, as engine time; ~0 where it is not reading.
  std::uint64_t waits_since() const { return phase_ == Phase::kReading ? moved_ns_ : ~std::uint64_t{0}; }
  /// Ends a connection that has not moved for too long in its phase.
  void check_idle(std::uint64_t now);
  std::uint64_t reserved() const { return reserved_; }

 private:
  enum class Phase { kReading, kAnswering, kDraining, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void read_head();
  void on_head(boost::system::error_code ec);
  void read_body();
  void on_body(boost::system::error_code ec);
  void dispatch();
  void refuse(boost::system::error_code ec);
  void refuse(int status, const std::string& message);
  void watch();
  void on_readable(boost::system::error_code ec);
  void write_out(bool last, std::size_t cut);
  void on_written(boost::system::error_code ec, bool last);
  void finish_answer();
  void drain();
  void gone();
  void close();
  void moved() { moved_ns_ = handler_.engine_now(); }
  std::string head_lines(int status, std::string_view type, const std::string& headers) const;

  Socket socket_;
  HttpHandler& handler_;
  Reserve reserve_;
  boost::beast::flat_buffer buffer_{kMaxHeaderBytes + 64 * 1024};
  std::optional<Parser> parser_;
  std::string out_;
  Phase phase_ = Phase::kReading;
  bool writing_ = false;
  bool watching_ = false;
  bool keep_alive_ = true;
  bool chunked_ = true;
  bool first_request_ = true;
  std::uint64_t reserved_ = 0;
  std::uint64_t drained_ = 0;
  std::uint64_t moved_ns_ = 0;
};

}  // namespace wisp::gateway
