#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <thread>

#include "shm/population.hpp"

namespace wisp::loader {

/// The dense weights and the slab, brought into memory and locked there: piece by piece from the front, the
/// dense part first, by a thread of low priority beside the one that reads, which then puts huge pages under
/// it. What is used before its turn is brought by ensure(). All but that thread's work belongs to the stage's
/// thread.
class ResidentMemory {
 public:
  ResidentMemory(std::span<std::byte> dense, std::span<std::byte> slab);
  ~ResidentMemory() { stop_.store(true, std::memory_order_relaxed); }
  ResidentMemory(const ResidentMemory&) = delete;
  ResidentMemory& operator=(const ResidentMemory&) = delete;

  /// Begins. `reached` follows the bytes of the slab that are there; `ended` is called, by the thread, at the
  /// end, and once more when huge pages are where they can be had. Refusal to lock is said in the log once,
  /// with the numbers, and ends the locking alone.
  void begin(std::atomic<std::uint64_t>& reached, std::function<void()> ended);
  /// Nothing more will come. failure() says whether that is because memory is not there.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  bool settled() const { return settled_.load(std::memory_order_acquire); }  ///< huge pages too
  /// After the end. kExhausted.
  const std::optional<Error>& failure() const { return failure_; }
  bool dense_there() const { return dense_.finished(); }          ///< after the end
  std::uint64_t slab_reached() const { return slab_.reached(); }  ///< after the end
  std::uint64_t locked() const { return locked_; }                ///< after the end
  bool all_locked() const { return locked_ == planned_; }         ///< after the end
  /// Bytes that lie in huge pages. Reads a file of the kernel.
  std::uint64_t huge() const;

  /// `bytes` of the slab from `from` on, now. Errors: kExhausted.
  Status ensure(std::uint64_t from, std::uint64_t bytes);

 private:
  void run(std::atomic<std::uint64_t>& reached);
  bool bring(shm::Population& part);
  void lock(std::span<const std::byte> piece);
  bool make_huge(std::span<const std::byte> memory);

  shm::Population dense_, slab_;  // of the thread
  shm::Population early_;         // the slab once more, of the stage
  std::uint64_t planned_ = 0;
  std::uint64_t locked_ = 0;
  bool locking_ = true;
  std::optional<Error> failure_;
  std::atomic<std::uint64_t> reached_{0};
  std::atomic<bool> stop_{false}, ended_{false}, settled_{false};
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace wisp::loader
