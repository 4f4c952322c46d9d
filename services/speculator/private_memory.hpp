#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.hpp"

namespace wisp::speculator {

/// Anonymous memory of this process, all of it there from the start, in huge pages where the kernel gives
/// them. Zero at first.
class PrivateMemory {
 public:
  PrivateMemory() = default;
  /// Errors: kExhausted with the numbers.
  static Result<PrivateMemory> take(std::uint64_t bytes);
  PrivateMemory(PrivateMemory&& other) noexcept
      : mapped_(std::exchange(other.mapped_, {})), bytes_(std::exchange(other.bytes_, {})) {}
  PrivateMemory& operator=(PrivateMemory&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;
  ~PrivateMemory();

  std::byte* data() { return bytes_.data(); }  ///< begins at a huge page
  std::uint64_t size() const { return bytes_.size(); }

 private:
  std::span<std::byte> mapped_, bytes_;
};

}  // namespace wisp::speculator
