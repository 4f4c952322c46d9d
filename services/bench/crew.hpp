#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.hpp"

namespace wisp::bench {

/// Lets the threads of a crew go on when all have come. They spin: a wake-up would be measured with them.
class SpinBarrier {
 public:
  explicit SpinBarrier(std::uint32_t threads) : threads_(threads) {}
  void meet();

 private:
  std::uint32_t threads_;
  std::atomic<std::uint32_t> here_{0}, round_{0};
};

/// The CPUs that this process may use. Errors: kIo.
Result<std::vector<int>> usable_cpus();

/// Errors: kInvalid where `threads` is 0 or more than the CPUs that this process may use.
Status check_threads(std::uint32_t threads);

/// Runs `work(thread, barrier)` on `threads` threads, each pinned to a CPU of its own of those that this
/// process may use, and returns when all are done. Errors: those of check_threads.
Status run_pinned(std::uint32_t threads, const std::function<void(std::uint32_t, SpinBarrier&)>& work);

}  // namespace wisp::bench
