#include "services/compute/thread_pool.hpp"

#include <link.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <span>

#include "base/pause.hpp"
#include "service/crash_point.hpp"
#include "shm/region.hpp"
#include "stats/ticks.hpp"

namespace wisp::compute {

namespace {

/// Below this, one thread is done before the others have seen the loop: some 0.3 us where they spin, some 30
/// us where they must be woken (across cores, in a virtual machine).
constexpr std::uint64_t kWorthSharingSpinning = 1u << 15;
constexpr std::uint64_t kWorthSharingSleeping = 1u << 19;
/// How long a thread spins: about what it costs to be put to sleep and woken.
constexpr double kSpinSeconds = 40e-6;

/// Pauses that fit into `seconds`: one takes from 10 to 150 cycles, by the kind of core.
std::uint32_t pauses_in(double seconds) {
  constexpr int kPauses = 256;
  double shortest = 1.0;  // of a few: others may be interrupted
  for (int i = 0; i < 8; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int p = 0; p < kPauses; ++p) pause();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    shortest = std::min(shortest, took.count());
  }
  return static_cast<std::uint32_t>(seconds / std::max(shortest / kPauses, 1e-9));
}

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// Enters the pages of this thread's stack that kernels may come to use, so that none is entered in a step.
__attribute__((noinline)) void touch_stack() {
  constexpr std::size_t kDepth = 128 << 10, kPage = 4096;
  char depth[kDepth];
  volatile char* page = depth;
  for (std::size_t i = 0; i < kDepth; i += kPage) page[i] = 0;
}

/// The same for the code of the program and its libraries: a kernel for longer contexts may begin late.
void touch_code() {
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void*) {
        for (const ElfW(Phdr) & part : std::span(object->dlpi_phdr, object->dlpi_phnum))
          if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0)
            shm::enter_in_page_table(reinterpret_cast<std::byte*>(object->dlpi_addr + part.p_vaddr),
                                     part.p_memsz, false);
        return 0;
      },
      nullptr);
}

}  // namespace

ThreadPool::ThreadPool(std::uint32_t threads, bool spin)
    : spins_(spin && threads > 1 ? pauses_in(kSpinSeconds) : 0),
      cost_worth_sharing_(spin ? kWorthSharingSpinning : kWorthSharingSleeping) {
  touch_stack();
  touch_code();
  // A crash point inside an item is the stage's, whichever thread passes it.
  for (std::uint32_t i = 1; i < threads; ++i)
    workers_.emplace_back([this, i, armed = service::detail::armed] {
      service::detail::armed = armed;
      work(i);
    });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(round_);
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::run(std::uint32_t items, std::uint64_t cost, Item fn) {
  if (workers_.empty() || items < 2 || cost < cost_worth_sharing_) {
    for (std::uint32_t i = 0; i < items; ++i) fn(i, 0);
    return;
  }
  fn_ = &fn;
  done_.store(0, std::memory_order_relaxed);
  resting_.store(false, std::memory_order_relaxed);
  // Publishes what stands above; threads that still look for items of the last loop may begin at once.
  claims_.store(std::uint64_t{items} << 32, std::memory_order_release);
  // seq_cst: either this sees the sleeper, or the sleeper's last look sees the new round.
  round_.store(round_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all(round_);
  drain(0);
  if (done_.load(std::memory_order_acquire) != items) await_end(items);
}

void ThreadPool::wake() {
  if (spins_ == 0) return;  // who woke would sleep again
  resting_.store(false, std::memory_order_relaxed);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all(round_);
}

void ThreadPool::rest() {
  resting_.store(true, std::memory_order_relaxed);
}

void ThreadPool::drain(std::uint32_t thread) {
  std::uint32_t finished = 0;
  for (;;) {
    const std::uint64_t claim = claims_.fetch_add(1, std::memory_order_acq_rel);
    const auto items = static_cast<std::uint32_t>(claim >> 32), item = static_cast<std::uint32_t>(claim);
    if (item < items) {
      (*fn_)(item, thread);
      ++finished;
      continue;
    }
    if (finished == 0) return;
    // The last to report wakes the caller; seq_cst as in run().
    const std::uint32_t done = done_.fetch_add(finished, std::memory_order_seq_cst) + finished;
    if (done == items && thread != 0 && caller_sleeps_.load(std::memory_order_seq_cst) != 0) wake_all(done_);
    return;
  }
}

void ThreadPool::await_end(std::uint32_t items) {
  const std::uint64_t begin = stats::ticks();
  for (std::uint32_t n = 0; n < spins_ && done_.load(std::memory_order_acquire) != items; ++n) pause();
  caller_sleeps_.store(1, std::memory_order_seq_cst);
  for (;;) {
    const std::uint32_t done = done_.load(std::memory_order_seq_cst);
    if (done == items) break;
    sleep_while(done_, done);
  }
  caller_sleeps_.store(0, std::memory_order_relaxed);
  waited_ticks_ += stats::ticks() - begin;
}

std::uint32_t ThreadPool::await_round(std::uint32_t seen) {
  for (;;) {
    std::uint32_t now = round_.load(std::memory_order_acquire);
    for (std::uint32_t n = 0; now == seen && n < spins_ && !resting_.load(std::memory_order_relaxed); ++n) {
      pause();
      now = round_.load(std::memory_order_acquire);
    }
    if (now != seen) return now;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    sleep_while(round_, seen);  // at most one sleep: wake() wants the thread to spin
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void ThreadPool::work(std::uint32_t thread) {
  touch_stack();
  std::uint32_t seen = 0;
  for (;;) {
    seen = await_round(seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    drain(thread);
  }
}

}  // namespace wisp::compute
