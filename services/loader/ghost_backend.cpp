#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include "services/loader/io_backend.hpp"

namespace wisp::loader {

namespace {

constexpr long kDelayNs = 300'000'000;
constexpr int kGarbage = 0xa5;

void close_between(unsigned from, unsigned to) {
  if (from <= to) ::syscall(SYS_close_range, from, to, 0u);
}

/// Everything the ghost needs, laid out before the fork: afterwards it may neither allocate nor lock.
struct Haunt {
  int loader_end = -1;  // readable (end of file) once the loader is gone
  int tombstone = -1;
  std::byte* slab = nullptr;
  std::uint64_t stride = 0;
  const slab::SlabDir* dir = nullptr;
  std::uint32_t epoch = 0;
  std::uint32_t* slots = nullptr;  // [dir->slots]
};

[[noreturn]] void haunt(const Haunt& h) {
  // Any other descriptor kept open here would hide the loader's end from those who wait for it.
  const auto a = static_cast<unsigned>(std::min(h.loader_end, h.tombstone < 0 ? h.loader_end : h.tombstone));
  const auto b = static_cast<unsigned>(std::max(h.loader_end, h.tombstone));
  if (a > 0) close_between(0, a - 1);
  if (a != b) close_between(a + 1, b - 1);
  close_between(b + 1, ~0u);
  ::setsid();
  char byte;
  ssize_t n;
  do n = ::read(h.loader_end, &byte, 1);
  while (n > 0 || (n < 0 && errno == EINTR));
  std::uint32_t count = 0;
  for (std::uint32_t s = 0; s < h.dir->slots; ++s) {
    const slab::SlotEntry& e = h.dir->entries()[s];
    const auto word = slab::SlotWord::unpack(e.word.load(std::memory_order_acquire));
    if (word.state == slab::SlotState::kFilling && e.fill_epoch.load(std::memory_order_acquire) == h.epoch)
      h.slots[count++] = s;
  }
  timespec left{0, kDelayNs};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
  for (std::uint32_t i = 0; i < count; ++i) std::memset(h.slab + h.slots[i] * h.stride, kGarbage, h.stride);
  ::_exit(0);
}

class GhostBackend : public IoBackend {
 public:
  Status open(BackendSetup& setup) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      return io_error(std::string("pipe for the ghost: ") + std::strerror(errno));
    const Fd read_end(ends[0]);
    life_.reset(ends[1]);
    std::vector<std::uint32_t> slots(setup.slab_dir->slots);
    const Haunt h{read_end.get(), setup.tombstone.get(), setup.slab.data(), setup.stride,
                  setup.slab_dir, setup.epoch,           slots.data()};
    const pid_t child = ::fork();
    if (child < 0) return io_error(std::string("fork of the ghost: ") + std::strerror(errno));
    if (child == 0) {
      if (::fork() == 0) haunt(h);  // twice, so that nobody here has to wait for it
      ::_exit(0);
    }
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    spdlog::warn("reads are haunted (--io ghost): for tests only");
    WISP_ASSIGN(inner_, make_pread_backend(setup));
    return {};
  }

  BackendKind kind() const override { return BackendKind::kGhost; }
  bool submit(const Read& r) override { return inner_->submit(r); }
  void flush() override { inner_->flush(); }
  std::size_t reap(std::span<Completion> out) override { return inner_->reap(out); }
  bool ready() const override { return inner_->ready(); }
  int poll_fd() const override { return inner_->poll_fd(); }

 private:
  Fd life_;  // the ghost sees end of file here when this process, or this backend, is gone
  std::unique_ptr<IoBackend> inner_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_ghost_backend(BackendSetup& setup) {
  auto backend = std::make_unique<GhostBackend>();
  WISP_TRY(backend->open(setup));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace wisp::loader
