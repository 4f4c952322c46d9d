#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.hpp"

namespace wisp::compute {

/// A fixed set of threads that share the items of one loop at a time. Which thread runs an item changes
/// nothing: items write disjoint outputs and the order of sums is fixed inside an item.
///
/// Items are claimed one by one, so a thread that the kernel took off its core keeps no more than the item it
/// is in. Who waits, spins for a while and then sleeps; the caller too, so that its core is free for the
/// thread that was preempted. Threads stay unbound so that the kernel may move them there. Binding each to a
/// core gained nothing: beside one busy process, two threads on two cores became 1.75 times slower unbound
/// and 1.77 bound in a model of Qwen3-30B's shape, 1.16 and 1.58 against 1.45 and 1.39 in the bundled one
/// (medians of 4 to 7 pairs, the machine loaded otherwise: the last differences are noise).
class ThreadPool {
 public:
  /// Runs item `item`; `thread` in [0, threads()) is who: scratch memory goes by it. 0 is the caller.
  using Item = FunctionRef<void(std::uint32_t item, std::uint32_t thread)>;

  /// `threads` counts the caller, who works too. `spin`: there is a core for each of them, so waiting may
  /// burn one for some microseconds; without, who waits sleeps at once.
  explicit ThreadPool(std::uint32_t threads, bool spin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Runs items 0 .. items - 1, each once, and returns when all are done. `cost` is a rough number of bytes
  /// or multiply-adds of the whole loop: small loops stay on the calling thread, where sharing would cost
  /// more. Allocates nothing; a system call only where a thread sleeps.
  void run(std::uint32_t items, std::uint64_t cost, Item fn);

  /// Shares the smallest loops too (tests).
  void share_everything() { cost_worth_sharing_ = 0; }

  /// Loops follow soon: sleeping threads begin to spin, where they may.
  void wake();
  /// No loop follows soon: spinning threads sleep now, and leave their cores to others.
  void rest();

  std::uint32_t threads() const { return static_cast<std::uint32_t>(workers_.size()) + 1; }
  /// stats::ticks() that the caller has spent waiting for others at the ends of loops.
  std::uint64_t waited_ticks() const { return waited_ticks_; }

 private:
  void work(std::uint32_t thread);
  /// Returns once the round is another than `seen`.
  std::uint32_t await_round(std::uint32_t seen);
  void await_end(std::uint32_t items);
  void drain(std::uint32_t thread);

  std::vector<std::thread> workers_;
  std::uint32_t spins_ = 0;  ///< pauses before a sleep
  std::uint64_t cost_worth_sharing_;
  std::uint64_t waited_ticks_ = 0;

  // Written by the caller between loops.
  const Item* fn_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> round_{0};  ///< number of the loop; workers sleep on it
  std::atomic<std::uint32_t> sleepers_{0};           ///< workers that sleep or are about to
  std::atomic<bool> resting_{false};
  std::atomic<bool> stop_{false};
  /// Items of this loop in the high half, next item in the low one: one addition claims an item of whichever
  /// loop is open, so a thread that comes late does no harm. A claim keeps the loop open until it is done.
  alignas(64) std::atomic<std::uint64_t> claims_{0};
  alignas(64) std::atomic<std::uint32_t> done_{0};  ///< items; the caller sleeps on it
  std::atomic<std::uint32_t> caller_sleeps_{0};
};

}  // namespace wisp::compute
