#include "services/bench/stream_bench.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "model/folder_writer.hpp"
#include "model/stripes.hpp"
#include "plan/run_plan.hpp"
#include "services/loader/device_stat.hpp"

namespace wisp::bench {

namespace {

using Clock = std::chrono::steady_clock;
using loader::Extent;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr std::uint64_t kBlock = 4096;
constexpr std::uint64_t kMostDepth = std::uint64_t{1} << 30;
constexpr std::uint32_t kMostThreads = 16;
constexpr std::uint64_t kSeed = 20;

}  // namespace

StreamBench::~StreamBench() {
  queue_.reset();
  backend_.reset();
  if (slab_ != nullptr) ::munmap(slab_, slab_bytes_);
}

Result<std::unique_ptr<StreamBench>> StreamBench::create(const StreamOptions& options) {
  std::unique_ptr<StreamBench> b(new StreamBench(options));
  // A queue without depth takes nothing, and would be waited for for ever.
  if (options.depth == 0 || options.depth > kMostDepth)
    return invalid("--depth must be larger than 0 and at most " + plan::format_size(kMostDepth));
  WISP_TRY(options.model.empty() ? b->make_file() : b->open_model());
  WISP_TRY(b->allocate());
  for (std::uint32_t i = 0; i < b->parts_.size(); ++i) b->order_.push_back(i);
  std::mt19937_64 rng(kSeed);
  std::shuffle(b->order_.begin(), b->order_.end(), rng);
  loader::BackendSetup setup;
  setup.io = options.io;
  setup.slab = {b->slab_, b->slab_bytes_};
  setup.stride = b->stride_;
  setup.drives = b->drives();
  setup.pinned = options.registered;
  WISP_ASSIGN(b->backend_, loader::make_backend(std::move(setup)));
  b->counters_ = std::make_unique<shm::Desk>();
  b->queue_.emplace(*b->backend_, *b->counters_, b->drives());
  b->queue_->set_depth(options.depth);
  return b;
}

Status StreamBench::open(const std::string& path, std::uint32_t& index) {
  WISP_ASSIGN(loader::ModelFile file, loader::open_model_file(path));
  struct stat st {};
  if (::fstat(file.fd.get(), &st) != 0) return io_error(path + ": " + std::strerror(errno));
  const auto known = std::find(devices_.begin(), devices_.end(), st.st_dev);
  file.drive = static_cast<std::uint32_t>(known - devices_.begin());
  if (known == devices_.end()) devices_.push_back(st.st_dev);
  index = static_cast<std::uint32_t>(files_.size());
  files_.push_back(std::move(file));
  return {};
}

Status StreamBench::open_model() {
  WISP_ASSIGN(const model::Manifest m, model::load_manifest(options_.model));
  WISP_ASSIGN(const auto stripes, model::load_stripes(options_.model, m));
  stride_ = m.spec.expert.stride;
  if (m.spec.expert_count() == 0) return invalid(options_.model + ": has no experts to read");
  files_.reserve(m.experts.size() * (1 + stripes.size()));
  const std::uint64_t here = stripes.empty() ? stride_ : stripes.front().begin;
  for (std::size_t l = 0; l < m.experts.size(); ++l) {
    if (m.experts[l].extents.empty()) continue;
    std::uint32_t file = 0;
    WISP_TRY(open(options_.model + "/" + m.experts[l].file, file));
    const std::size_t first = parts_.size();
    for (const auto& x : m.experts[l].extents)
      parts_.push_back({{&files_[file], x.offset, here, nullptr, 0}});
    for (const model::Stripe& s : stripes) {
      WISP_TRY(open(s.folder + "/" + s.files[l], file));
      for (std::uint32_t e = 0; e < m.experts[l].extents.size(); ++e)
        parts_[first + e].push_back({&files_[file], s.offset_of(e), s.bytes(), nullptr, 0});
    }
  }
  return {};
}

/// A file of random bytes: what was never written reads as zeros without a drive. It loses its name at once,
/// so that nothing is left of it whatever ends this process.
Status StreamBench::make_file() {
  if (options_.size == 0) return invalid("--size must be larger than 0");
  const std::uint64_t count =
      options_.size > options_.bank ? 0 : options_.bank / ((options_.size + kBlock - 1) / kBlock * kBlock);
  if (count < 2) return invalid("--bank must hold at least two experts of --size");
  stride_ = (options_.size + kBlock - 1) / kBlock * kBlock;
  struct statvfs room {};
  if (::statvfs(options_.folder.c_str(), &room) != 0)
    return io_error("--dir " + options_.folder + ": " + std::strerror(errno));
  if (const std::uint64_t free = std::uint64_t{room.f_bavail} * room.f_frsize; free < count * stride_)
    return exhausted("--dir " + options_.folder + ": a file of " + plan::format_size(count * stride_) +
                     " is to be made there, and " + plan::format_size(free) +
                     " are free; give a smaller --bank, or a folder on another drive");
  const std::string path = options_.folder + "/wisp-bench-" + std::to_string(::getpid());
  WISP_ASSIGN(model::OutputFile out, model::OutputFile::create(path));
  const Fd kept(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int refused = errno;
  ::unlink(path.c_str());
  if (!kept.valid()) return io_error(path + ": " + std::strerror(refused));
  std::vector<std::uint8_t> bytes(stride_);
  std::mt19937_64 rng(kSeed);
  for (std::uint64_t e = 0; e < count; ++e) {
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const std::uint64_t word = rng();
      std::memcpy(bytes.data() + i, &word, 8);
    }
    WISP_TRY(out.write(bytes));
  }
  WISP_TRY(out.close_durably());
  std::uint32_t file = 0;
  files_.reserve(1);  // extents point into it
  WISP_TRY(open("/proc/self/fd/" + std::to_string(kept.get()), file));
  files_[file].path = path;
  for (std::uint64_t e = 0; e < count; ++e)
    parts_.push_back({{&files_[file], e * stride_, stride_, nullptr, 0}});
  return {};
}

/// As many slots as the queue may have under way on all drives, and some that are being answered.
Status StreamBench::allocate() {
  slots_ = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(4 * options_.depth * drives() / stride_, 2 * kMostThreads, 1024));
  slab_bytes_ = slots_ * stride_;
  void* at = ::mmap(nullptr, slab_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return exhausted(std::to_string(slab_bytes_) + " bytes for slots: " + std::strerror(errno));
  slab_ = static_cast<std::byte*>(at);
  ::madvise(at, slab_bytes_, MADV_HUGEPAGE);
  std::memset(at, 0, slab_bytes_);
  return {};
}

const StreamBench::Parts& StreamBench::next() {
  const Parts& p = parts_[order_[at_]];
  at_ = (at_ + 1) % order_.size();
  return p;
}

std::optional<std::uint64_t> StreamBench::device_bytes() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t d : devices_) {
    const auto bytes = loader::device_bytes_read(d);
    if (!bytes) return std::nullopt;
    sum += *bytes;
  }
  return sum;
}

Result<double> StreamBench::loader_turn(StreamFigures& f) {
  std::vector<std::uint32_t> free;
  for (std::uint32_t s = 0; s < slots_; ++s) free.push_back(s);
  std::vector<Clock::time_point> asked(slots_);
  Parts parts;
  const std::uint64_t count = std::max<std::uint64_t>(2, options_.turn_bytes / stride_);
  const auto start = Clock::now();
  for (std::uint64_t begun = 0, done = 0; done < count;) {
    if (stopped()) return interrupted("interrupted");
    while (begun < count && !free.empty() && queue_->has_room()) {
      const std::uint32_t slot = free.back();
      free.pop_back();
      parts = next();
      std::byte* to = slab_ + slot * stride_;
      for (Extent& e : parts) {
        e.destination = to;
        e.tag = slot;
        to += e.bytes;
      }
      asked[slot] = Clock::now();
      queue_->add(parts);
      ++begun;
    }
    queue_->pump();
    pollfd p{backend_->poll_fd(), POLLIN, 0};
    if (!backend_->ready() && !queue_->has_done() && ::poll(&p, 1, -1) < 0 && errno != EINTR)
      return io_error(std::string("poll: ") + std::strerror(errno));
    queue_->reap();
    while (auto end = queue_->take_done()) {
      if (end->error) return std::move(*end->error);
      f.loader_ms.push_back(1000.0 * seconds_since(asked[end->tag]));
      free.push_back(static_cast<std::uint32_t>(end->tag));
      ++done;
    }
  }
  f.expert_bytes += count * stride_;
  return static_cast<double>(count * stride_) / seconds_since(start) / 1e9;
}

/// On each drive as many threads as fill the depth with whole parts.
Result<double> StreamBench::plain_turn(StreamFigures& f) {
  const std::uint64_t count = std::max<std::uint64_t>(2, options_.turn_bytes / stride_);
  const std::size_t first = at_;
  at_ = (at_ + count) % order_.size();
  std::mutex mutex;
  std::optional<Error> error;
  std::vector<std::thread> threads;
  std::vector<std::atomic<std::uint64_t>> cursor(drives());
  const auto work = [&](std::uint32_t drive, std::byte* to) {
    std::vector<double> ms;
    for (std::uint64_t i = cursor[drive]++; i < count && !stopped(); i = cursor[drive]++) {
      for (const Extent& e : parts_[order_[(first + i) % order_.size()]]) {
        if (e.file->drive != drive) continue;
        const auto start = Clock::now();
        const ssize_t n = ::pread(e.file->fd.get(), to, e.bytes, static_cast<off_t>(e.offset));
        ms.push_back(1000.0 * seconds_since(start));
        if (n == static_cast<ssize_t>(e.bytes)) continue;
        const std::lock_guard lock(mutex);
        error = io_error(e.file->path + ": " + (n < 0 ? std::strerror(errno) : "short read"));
        return;
      }
    }
    const std::lock_guard lock(mutex);
    f.plain_ms.insert(f.plain_ms.end(), ms.begin(), ms.end());
  };
  const auto start = Clock::now();
  std::uint32_t slot = 0;
  for (std::uint32_t d = 0; d < drives(); ++d) {
    const std::uint64_t part = stride_ / parts_.front().size();
    const std::uint64_t wanted =
        std::clamp<std::uint64_t>(options_.depth / std::max(part, kBlock), 1, kMostThreads);
    for (std::uint64_t t = 0; t < wanted; ++t, slot = (slot + 1) % slots_)
      threads.emplace_back(work, d, slab_ + slot * stride_);
  }
  for (std::thread& t : threads) t.join();
  if (error) return std::move(*error);
  if (stopped()) return interrupted("interrupted");
  return static_cast<double>(count * stride_) / seconds_since(start) / 1e9;
}

Result<double> StreamBench::plain_gb_s() {
  StreamFigures f;
  return plain_turn(f);
}

Result<StreamFigures> StreamBench::measure() {
  StreamFigures f;
  StreamFigures warm;
  WISP_TRY(loader_turn(warm));
  std::uint64_t device = 0;
  bool known = true;
  for (std::uint32_t i = 0; i < options_.pairs; ++i) {
    const auto before = device_bytes();
    WISP_ASSIGN(const double ours, loader_turn(f));
    const auto after = device_bytes();
    known = known && before && after;
    if (known) device += *after - *before;
    WISP_ASSIGN(const double plain, plain_turn(f));
    f.rates.kernel.push_back(ours);
    f.rates.roof.push_back(plain);
  }
  if (known) f.device_bytes = device;
  return f;
}

std::string StreamBench::backend() const {
  return backend_->kind() == loader::BackendKind::kUring ? "io_uring" : "pread";
}

}  // namespace wisp::bench
