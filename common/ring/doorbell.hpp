#pragma once
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace wisp::ring {

/// A stage's eventfd: one for all its rings. Does not own the descriptor.
class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  void ring() const {
    const std::uint64_t one = 1;
    // EAGAIN means that it already rings; nothing else can be done about a bell that is gone.
    [[maybe_unused]] const auto n = ::write(fd_, &one, sizeof one);
  }
  void silence() const {
    std::uint64_t count;
    [[maybe_unused]] const auto n = ::read(fd_, &count, sizeof count);
  }

 private:
  int fd_ = -1;
};

}  // namespace wisp::ring
