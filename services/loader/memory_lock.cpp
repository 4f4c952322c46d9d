#include "services/loader/memory_lock.hpp"

#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace wisp::loader {

namespace {
constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;
}

bool MemoryLock::step() {
  if (!has_work()) return false;
  const std::span<std::byte> range = ranges_[next_];
  const std::uint64_t bytes = std::min<std::uint64_t>(kPiece, range.size() - done_in_range_);
  if (::mlock(range.data() + done_in_range_, bytes) != 0) {
    refused(errno);
    return false;
  }
  locked_ += bytes;
  done_in_range_ += bytes;
  if (done_in_range_ < range.size()) return false;
  done_in_range_ = 0;
  if (++next_ < ranges_.size()) return false;
  spdlog::info("dense weights and slab are locked in memory, {} bytes", locked_);
  return true;
}

void MemoryLock::refused(int error) {
  std::uint64_t need = 0;
  for (const auto& r : ranges_) need += r.size();
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  spdlog::warn(
      "dense weights and slab need {} bytes locked, only {} are (mlock: {}; RLIMIT_MEMLOCK is {} bytes): the "
      "system "
      "may swap the rest out. Raise the limit: `ulimit -l {}`, LimitMEMLOCK={} in a systemd unit, or "
      "CAP_IPC_LOCK",
      need, locked_, std::strerror(error), limit.rlim_cur, need / 1024 + 64, need + (64u << 10));
  next_ = ranges_.size();
}

}  // namespace wisp::loader
