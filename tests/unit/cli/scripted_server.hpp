#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace wisp::cli {

/// A gateway that says what the test wrote down: one reply per connection, then it closes. `stall` leaves the
/// last connection open instead.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> replies, bool stall = false)
      : replies_(std::move(replies)), stall_(stall) {
    std::string name = (std::filesystem::temp_directory_path() / "wisp-http-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~ScriptedServer() {
    stop_ = true;
    thread_.join();
    std::filesystem::remove_all(folder_);
  }

  std::string path() const { return folder_ + "/http.sock"; }
  /// What the clients sent. Only after the client is done.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  bool readable(int fd) const {
    while (!stop_) {
      pollfd p{fd, POLLIN, 0};
      if (::poll(&p, 1, 20) > 0) return true;
    }
    return false;
  }

  std::string receive(int fd) const {
    std::string all;
    std::size_t wanted = std::string::npos;
    while (all.size() < wanted && readable(fd)) {
      char bytes[4096];
      const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
      if (n <= 0) break;
      all.append(bytes, static_cast<std::size_t>(n));
      const auto head = all.find("\r\n\r\n");
      const auto length = all.find("Content-Length: ");
      if (head != std::string::npos && length < head) wanted = head + 4 + std::stoul(all.substr(length + 16));
    }
    return all;
  }

  void serve() {
    for (std::size_t i = 0; i < replies_.size() && readable(listener_.get()); ++i) {
      Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      requests_.push_back(receive(client.get()));
      // In small packets, so that the reader meets every kind of cut.
      for (std::size_t at = 0; at < replies_[i].size(); at += 7) {
        const std::string piece = replies_[i].substr(at, 7);
        if (::send(client.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
      }
      while (stall_ && i + 1 == replies_.size() && !stop_)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::vector<std::string> replies_;
  bool stall_;
  std::string folder_;
  Fd listener_;
  std::atomic<bool> stop_{false};
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace wisp::cli
