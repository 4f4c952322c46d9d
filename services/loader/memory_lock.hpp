#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace wisp::loader {

/// Locks memory in pieces, so that a loader over a large slab answers while it does so: locking maps every
/// page, at about 50 ms per GiB. Refusal is said in the log once, with the numbers, and ends it.
class MemoryLock {
 public:
  void add(std::span<std::byte> memory) {
    if (!memory.empty()) ranges_.push_back(memory);
  }
  bool has_work() const { return next_ < ranges_.size(); }
  /// Locks the next piece. Returns true once, when everything is locked.
  bool step();

 private:
  void refused(int error);

  std::vector<std::span<std::byte>> ranges_;
  std::size_t next_ = 0;
  std::uint64_t done_in_range_ = 0;
  std::uint64_t locked_ = 0;
};

}  // namespace wisp::loader
