#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "shm/population.hpp"

namespace wisp::loader {

/// The dense weights and the slab, brought into memory and locked there: piece by piece from the front, the
/// dense part first, while nobody waits for the loader. What is used before its turn is brought by ensure().
class ResidentMemory {
 public:
  ResidentMemory() = default;
  ResidentMemory(std::span<std::byte> dense, std::span<std::byte> slab);

  bool has_work() const { return !dense_.finished() || !slab_.finished(); }
  /// One more piece. Refusal to lock is said in the log once, with the numbers, and ends the locking alone.
  /// Errors: kExhausted where memory is not there; for the slab, cut() ends it.
  Status step();
  /// `bytes` of the slab from `from` on, now. Errors: kExhausted.
  Status ensure(std::uint64_t from, std::uint64_t bytes) { return slab_.ensure(from, bytes); }
  /// There is no more: the slab ends where it is. Bytes that it has.
  std::uint64_t cut();

  bool dense_there() const { return dense_.finished(); }
  std::uint64_t slab_reached() const { return slab_.reached(); }
  std::uint64_t locked() const { return locked_; }
  bool all_locked() const { return !has_work() && locking_; }
  /// Bytes that lie in huge pages. Reads a file of the kernel.
  std::uint64_t huge() const;

 private:
  Status step(shm::Population& part);
  void lock(std::span<const std::byte> piece);

  shm::Population dense_, slab_;
  std::uint64_t planned_ = 0;
  std::uint64_t locked_ = 0;
  bool locking_ = true;
};

}  // namespace wisp::loader
