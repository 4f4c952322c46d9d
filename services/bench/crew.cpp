#include "services/bench/crew.hpp"

#include <pthread.h>
#include <sched.h>

#include <string>
#include <thread>
#include <vector>

#include "base/pause.hpp"

namespace wisp::bench {

void SpinBarrier::meet() {
  constexpr std::uint32_t kSpins = 1u << 16;
  const std::uint32_t round = round_.load(std::memory_order_acquire);
  if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    here_.store(0, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    return;
  }
  for (std::uint32_t spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
    pause();
    // Somebody has taken a CPU away: let it come.
    if (spins >= kSpins) std::this_thread::yield();
  }
}

Result<std::vector<int>> usable_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return io_error("the CPUs of this process: unknown");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  return cpus;
}

Status check_threads(std::uint32_t threads) {
  WISP_ASSIGN(const std::vector<int> cpus, usable_cpus());
  if (threads == 0 || threads > cpus.size())
    return invalid(std::to_string(threads) + " threads: this process may use " + std::to_string(cpus.size()) +
                   " CPUs, and each thread needs one");
  return {};
}

Status run_pinned(std::uint32_t threads, const std::function<void(std::uint32_t, SpinBarrier&)>& work) {
  WISP_TRY(check_threads(threads));
  WISP_ASSIGN(const std::vector<int> cpus, usable_cpus());
  SpinBarrier barrier(threads);
  std::vector<std::thread> crew;
  for (std::uint32_t t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpus[t], &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      work(t, barrier);
    });
  }
  for (std::thread& t : crew) t.join();
  return {};
}

}  // namespace wisp::bench
