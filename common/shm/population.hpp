#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"

namespace wisp::shm {

/// Whether this kernel can say that memory is not there instead of killing who touches it (Linux 5.14).
bool can_populate();

inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

/// Puts a huge page in the place of the small ones that back `at` to `at` + kHugePage; `at` is a multiple of
/// it. Needs no setting of the system (shmem_enabled may be `never`), Linux 6.1, and a free huge page.
/// Readers and writers go on; other processes that map it meet one more fault there. Costs about 2 ms.
enum class Collapse : std::uint8_t {
  kDone,
  kBusy,    ///< a read of the drive is on its way there
  kRefused  ///< not here, or no more
};
Collapse collapse(const std::byte* at);

/// Bytes of a mapping that lie in huge pages of this process's page table. Reads /proc/self/smaps.
std::uint64_t huge_page_bytes(std::span<const std::byte> mapped);

/// Backs a mapping with memory and enters its pages in this process's page table, in pieces from the front,
/// so that a thread may do it when it has nothing else to do and no later use costs a fault. About .7 s per
/// GiB for fresh memory, .1 s where another process has been there before. One thread.
///
/// Errors (kExhausted with the numbers): memory is not there. What was reached before stays good. A kernel
/// without the call reaches everything at once, and pages come one by one later.
class Population {
 public:
  enum class Access : std::uint8_t { kRead, kWrite };
  /// What one step() takes: a huge page, and short enough for a drive that waits.
  static constexpr std::uint64_t kPiece = kHugePage;

  Population() = default;
  Population(std::span<const std::byte> memory, Access access) : memory_(memory), access_(access) {}

  std::uint64_t size() const { return memory_.size(); }
  /// Bytes from the front that are done.
  std::uint64_t reached() const { return reached_; }
  bool finished() const { return reached_ == memory_.size(); }
  std::span<const std::byte> memory() const { return memory_; }
  /// Ends it where it is.
  void cut() { memory_ = memory_.first(reached_); }

  /// One more piece.
  Status step() { return reach(reached_ + 1); }
  /// Everything below `bytes`, and what is left of the piece that they end in.
  Status reach(std::uint64_t bytes);
  /// `bytes` from `from` on, which may lie beyond what has been reached.
  Status ensure(std::uint64_t from, std::uint64_t bytes);

 private:
  Status populate(std::uint64_t from, std::uint64_t to) const;
  void reach_what_is_there(std::uint64_t end);

  std::span<const std::byte> memory_;
  Access access_ = Access::kRead;
  std::uint64_t reached_ = 0;
};

}  // namespace wisp::shm
