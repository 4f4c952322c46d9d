#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "services/loader/fifo.hpp"
#include "services/loader/io_backend.hpp"

namespace wisp::loader {

namespace {

constexpr unsigned kThreads = 4;  // for a drive

/// Blocking reads on a few threads. The tombstone simply stays open: the process is not reaped, and its
/// descriptors not closed, before the last thread has left its read.
class PreadBackend : public IoBackend {
 public:
  ~PreadBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  Status open(BackendSetup& setup) {
    done_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!done_fd_.valid())
      return io_error(std::string("eventfd for the read threads: ") + std::strerror(errno));
    WISP_TRY(start_threads(kThreads * std::clamp(setup.drives, 1u, 4u)));
    tombstone_ = std::move(setup.tombstone);
    return {};
  }

  BackendKind kind() const override { return BackendKind::kPread; }

  bool submit(const Read& r) override {
    if (taken_ >= kMaxReads) return false;
    ++taken_;
    {
      const std::lock_guard lock(mutex_);
      todo_.push_back(r);
    }
    wake_.notify_one();
    return true;
  }

  void flush() override {}

  std::size_t reap(std::span<Completion> out) override {
    if (!ready()) return 0;
    std::uint64_t count;
    const std::lock_guard lock(mutex_);
    // Rung and silenced under the lock: a bell that outlasts its completion would keep the stage awake.
    [[maybe_unused]] const auto rc = ::read(done_fd_.get(), &count, sizeof count);
    const std::size_t n = std::min(out.size(), done_.size());
    std::copy_n(done_.begin(), n, out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    done_count_.store(done_.size(), std::memory_order_release);
    taken_ -= static_cast<std::uint32_t>(n);
    return n;
  }

  bool ready() const override { return done_count_.load(std::memory_order_acquire) > 0; }
  int poll_fd() const override { return done_fd_.get(); }

 private:
  Status start_threads(unsigned count) {
    // Signals belong to the stage's thread: a worker must not run handlers of a host that knows nothing of
    // it.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& e) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      if (threads_.size() < 2) return io_error(std::string("threads for reading: ") + e.what());
      return {};
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
  }

  static ssize_t read(const Read& r) {
    const auto at = static_cast<off_t>(r.offset);
    if (r.places.empty()) return ::pread(r.fd, r.destination, r.bytes, at);
    return ::preadv(r.fd, r.places.data(), static_cast<int>(r.places.size()), at);
  }

  void work() {
    for (;;) {
      Read r;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stop_ || !todo_.empty(); });
        if (stop_) return;
        r = todo_.front();
        todo_.pop_front();
      }
      ssize_t n;
      do n = read(r);
      while (n < 0 && errno == EINTR);
      const std::int64_t result = n < 0 ? -errno : n;
      {
        const std::lock_guard lock(mutex_);
        done_.push_back({r.tag, result});
        done_count_.store(done_.size(), std::memory_order_release);
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto rc = ::write(done_fd_.get(), &one, sizeof one);
      }
    }
  }

  Fd tombstone_;  // closed after the threads are joined: members go after the destructor's body
  Fd done_fd_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Fifo<Read> todo_;
  std::vector<Completion> done_;
  std::atomic<std::size_t> done_count_{0};
  std::uint32_t taken_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_pread_backend(BackendSetup& setup) {
  auto backend = std::make_unique<PreadBackend>();
  WISP_TRY(backend->open(setup));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace wisp::loader
