#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace wisp::compute {

/// A fixed set of threads that share the items of one loop at a time. Which thread runs an item changes
/// nothing: items write disjoint outputs and the order of sums is fixed inside an item.
class ThreadPool {
 public:
  /// `threads` counts the caller, who works too.
  explicit ThreadPool(std::uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Runs fn(0) .. fn(items - 1), each once, and returns when all are done. `cost` is a rough number of bytes
  /// or multiply-adds of the whole loop: small loops stay on the calling thread, where a wake-up would cost
  /// more.
  void run(std::uint32_t items, std::uint64_t cost, const std::function<void(std::uint32_t)>& fn);

  std::uint32_t threads() const { return static_cast<std::uint32_t>(workers_.size()) + 1; }

 private:
  void work();
  void drain();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  const std::function<void(std::uint32_t)>* fn_ = nullptr;
  std::uint32_t items_ = 0;
  std::uint64_t round_ = 0;  ///< guarded by mutex_
  std::uint32_t busy_ = 0;   ///< workers inside the present round, guarded by mutex_
  bool stop_ = false;        ///< guarded by mutex_
  std::atomic<std::uint32_t> next_{0};
};

}  // namespace wisp::compute
