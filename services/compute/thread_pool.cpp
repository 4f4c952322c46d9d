#include "services/compute/thread_pool.hpp"

namespace wisp::compute {

namespace {
/// Below this, one thread is done before another has woken (a cross-core wake-up costs some 30 us in a VM).
constexpr std::uint64_t kWorthSharing = 1u << 19;
}  // namespace

ThreadPool::ThreadPool(std::uint32_t threads) {
  for (std::uint32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::drain() {
  for (;;) {
    const std::uint32_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= items_) return;
    (*fn_)(i);
  }
}

void ThreadPool::run(std::uint32_t items, std::uint64_t cost, const std::function<void(std::uint32_t)>& fn) {
  if (workers_.empty() || items < 2 || cost < kWorthSharing) {
    for (std::uint32_t i = 0; i < items; ++i) fn(i);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    fn_ = &fn;
    items_ = items;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<std::uint32_t>(workers_.size());
    ++round_;
  }
  start_.notify_all();
  drain();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::work() {
  std::uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    drain();
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace wisp::compute
