#include <liburing.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "services/loader/io_backend.hpp"

namespace wisp::loader {

namespace {

constexpr unsigned kEntries = kMaxReads;
constexpr std::uint64_t kMaxBuffer = std::uint64_t{1} << 30;  // the kernel's limit for one registered buffer
// Pinning costs about 50 ms per GiB at each start, and reads of a MiB and more gain nothing that could be
// measured: a large slab is better off with a fast restart.
constexpr std::uint64_t kMaxRegistered = std::uint64_t{4} << 30;

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit) + " bytes";
}

class UringBackend : public IoBackend {
 public:
  UringBackend() = default;
  ~UringBackend() override {
    if (open_) io_uring_queue_exit(&ring_);
  }
  UringBackend(const UringBackend&) = delete;
  UringBackend& operator=(const UringBackend&) = delete;

  Status open(BackendSetup& setup) {
    if (const int rc = io_uring_queue_init(kEntries, &ring_, 0); rc < 0)
      return unavailable(std::string("io_uring cannot be used here: io_uring_setup: ") + std::strerror(-rc));
    open_ = true;
    io_uring_ring_dontfork(&ring_);
    if (setup.tombstone.valid()) {
      // The kernel drops a fixed file only when the ring itself is gone, which is after the last read has
      // landed. So it must be the only reference, and there before the first submission.
      const int fd = setup.tombstone.get();
      if (const int rc = io_uring_register_files(&ring_, &fd, 1); rc < 0)
        return unavailable(std::string("io_uring cannot hold the tombstone: io_uring_register: ") +
                           std::strerror(-rc));
      setup.tombstone.reset();
    }
    register_slab(setup);
    return {};
  }

  BackendKind kind() const override { return BackendKind::kUring; }

  bool submit(const Read& r) override {
    if (taken_ >= kMaxReads) return false;
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return false;
    const int buffer = buffer_of(r);
    if (!r.places.empty())
      io_uring_prep_readv(sqe, r.fd, r.places.data(), static_cast<unsigned>(r.places.size()), r.offset);
    else if (buffer >= 0)
      io_uring_prep_read_fixed(sqe, r.fd, r.destination, r.bytes, r.offset, buffer);
    else
      io_uring_prep_read(sqe, r.fd, r.destination, r.bytes, r.offset);
    io_uring_sqe_set_data64(sqe, r.tag);
    ++taken_;
    return true;
  }

  void flush() override {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int rc = io_uring_submit(&ring_);
      if (rc > 0 || rc == -EINTR) continue;
      if (rc == 0 || rc == -EAGAIN || rc == -EBUSY)
        return;  // out of kernel memory for now: ready() stays true
      spdlog::critical("io_uring_submit: {}", std::strerror(-rc));
      WISP_CHECK(false);
    }
  }

  std::size_t reap(std::span<Completion> out) override {
    std::size_t n = 0;
    io_uring_cqe* cqe = nullptr;
    while (n < out.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      out[n++] = {io_uring_cqe_get_data64(cqe), cqe->res};
      io_uring_cqe_seen(&ring_, cqe);
      --taken_;
    }
    return n;
  }

  bool ready() const override { return io_uring_cq_ready(&ring_) > 0 || io_uring_sq_ready(&ring_) > 0; }
  int poll_fd() const override { return ring_.ring_fd; }

 private:
  void register_slab(const BackendSetup& setup) {
    const std::uint64_t bytes = setup.slab.size();
    if (!setup.registered || bytes == 0 || setup.stride == 0 || setup.stride > kMaxBuffer) return;
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (bytes > kMaxRegistered) {
      spdlog::info("slab of {} bytes is read into without registered buffers (registered up to {} bytes)",
                   bytes, kMaxRegistered);
      return;
    }
    const std::uint64_t chunk = kMaxBuffer / setup.stride * setup.stride;
    std::vector<iovec> buffers;
    for (std::uint64_t at = 0; at < bytes; at += chunk)
      buffers.push_back({setup.slab.data() + at, std::min(chunk, bytes - at)});
    const int rc = io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(buffers.size()));
    if (rc < 0) {
      spdlog::info(
          "slab of {} bytes is read into without registered buffers: {}; RLIMIT_MEMLOCK is {}, as much as "
          "the "
          "slab is needed: `ulimit -l {}`, LimitMEMLOCK={} in a systemd unit, or CAP_IPC_LOCK",
          bytes, std::strerror(-rc), limit_text(limit.rlim_cur), bytes / 1024 + 64, bytes + (64u << 10));
      return;
    }
    slab_ = setup.slab;
    chunk_ = chunk;
    spdlog::info("slab of {} bytes registered with io_uring in {} buffers", bytes, buffers.size());
  }

  int buffer_of(const Read& r) const {
    if (chunk_ == 0 || r.destination < slab_.data()) return -1;
    const auto at = static_cast<std::uint64_t>(r.destination - slab_.data());
    if (at + r.bytes > slab_.size() || at / chunk_ != (at + r.bytes - 1) / chunk_) return -1;
    return static_cast<int>(at / chunk_);
  }

  io_uring ring_{};
  bool open_ = false;
  std::uint32_t taken_ = 0;
  std::span<std::byte> slab_;
  std::uint64_t chunk_ = 0;  // bytes of a registered buffer, a multiple of the stride; 0 = none registered
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_uring_backend(BackendSetup& setup) {
  auto backend = std::make_unique<UringBackend>();
  WISP_TRY(backend->open(setup));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace wisp::loader
