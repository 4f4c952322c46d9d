#pragma once
// clang-format off
#include <utility>  // Asio 1.74 uses std::exchange in C++20 without it
// clang-format on
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "services/gateway/http_session.hpp"

namespace wisp::gateway {

inline constexpr std::size_t kMaxConnections = 256;
/// Bodies that are received or whose prompts wait, all connections together, as multiples of the longest.
inline constexpr std::uint64_t kMaxBodies = 8;

/// Accepts connections on inherited listening sockets and keeps their sessions.
class HttpServer {
 public:
  HttpServer(boost::asio::io_context& io, HttpHandler& handler) : io_(io), handler_(handler) {}

  /// Accepts on a duplicate of `fd`. Errors: kIo where it is no listening socket.
  Status listen(int fd);
  std::size_t connections() const { return sessions_.size(); }
  /// Called now and then: ends idle connections, forgets closed ones, accepts again after a shortage.
  void tick();

 private:
  struct Listener {
    boost::asio::posix::stream_descriptor socket;
    bool waiting = false;
  };
  void wait(Listener& l);
  void accept(Listener& l);
  void welcome(int fd);
  bool reserve(const Session& asking, std::uint64_t bytes) const;
  void make_room();
  void forget_closed();

  boost::asio::io_context& io_;
  HttpHandler& handler_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::shared_ptr<Session>> sessions_;
};

}  // namespace wisp::gateway
