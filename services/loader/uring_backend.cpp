#include <liburing.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "services/loader/io_backend.hpp"
#include "services/loader/memlock.hpp"

namespace wisp::loader {

namespace {

constexpr unsigned kEntries = kMaxReads;
constexpr std::uint64_t kMaxBuffer = std::uint64_t{1} << 30;  // the kernel's limit for one registered buffer
constexpr std::uint64_t kMaxBuffers = 1u << 14;               // and for their number
constexpr std::uint64_t kPinned = std::uint64_t{64} << 20;    // at a time

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
    prepare_pins(setup);
    if (setup.pinned) pin(setup.slab.size());
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

  std::uint64_t pin(std::uint64_t bytes) override {
    if (bytes == 0) {
      if (table_) io_uring_unregister_buffers(&ring_);
      table_ = false;
      return pinned_ = 0;
    }
    if (refused_ || chunk_ == 0) return pinned_;
    if (!table_) {
      const std::uint64_t buffers = (slab_.size() + chunk_ - 1) / chunk_;
      const int rc = io_uring_register_buffers_sparse(&ring_, static_cast<unsigned>(buffers));
      if (rc < 0) {
        refuse(-rc);
        return pinned_;
      }
      table_ = true;
    }
    while (pinned_ < std::min<std::uint64_t>(bytes, slab_.size())) {
      const iovec v{slab_.data() + pinned_, std::min<std::uint64_t>(chunk_, slab_.size() - pinned_)};
      const int rc = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(pinned_ / chunk_), &v,
                                                          nullptr, 1);
      if (rc < 1) {
        refuse(rc < 0 ? -rc : ENOMEM);
        break;
      }
      pinned_ += v.iov_len;
    }
    return pinned_;
  }

 private:
  void prepare_pins(const BackendSetup& setup) {
    if (setup.slab.empty() || setup.stride == 0 || setup.stride > kMaxBuffer) return;
    slab_ = setup.slab;
    const std::uint64_t least = std::max(kPinned, (slab_.size() + kMaxBuffers - 1) / kMaxBuffers);
    chunk_ =
        std::min(std::max<std::uint64_t>(1, least / setup.stride), kMaxBuffer / setup.stride) * setup.stride;
  }

  void refuse(int error) {
    refused_ = true;
    spdlog::info("slab of {} bytes is read into without registered buffers: {}; {}", slab_.size(),
                 std::strerror(error), memlock_advice(slab_.size()));
  }

  int buffer_of(const Read& r) const {
    if (pinned_ == 0 || r.destination < slab_.data()) return -1;
    const auto at = static_cast<std::uint64_t>(r.destination - slab_.data());
    if (at + r.bytes > pinned_ || at / chunk_ != (at + r.bytes - 1) / chunk_) return -1;
    return static_cast<int>(at / chunk_);
  }

  io_uring ring_{};
  bool open_ = false;
  std::uint32_t taken_ = 0;
  std::span<std::byte> slab_;
  std::uint64_t chunk_ = 0;   // bytes of a registered buffer, a multiple of the stride; 0 = there can be none
  std::uint64_t pinned_ = 0;  // bytes from the front that are registered
  bool table_ = false;        // the kernel holds a table of buffers
  bool refused_ = false;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_uring_backend(BackendSetup& setup) {
  auto backend = std::make_unique<UringBackend>();
  WISP_TRY(backend->open(setup));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace wisp::loader
