#include "services/loader/resident_memory.hpp"

#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "services/loader/memlock.hpp"

namespace wisp::loader {

namespace {
/// Whoever computes or reads goes first.
constexpr int kNice = 19;
using Access = shm::Population::Access;
}  // namespace

ResidentMemory::ResidentMemory(std::span<std::byte> dense, std::span<std::byte> slab)
    : dense_(dense, Access::kWrite),
      slab_(slab, Access::kWrite),
      early_(slab, Access::kWrite),
      planned_(dense.size() + slab.size()) {}

void ResidentMemory::begin(std::atomic<std::uint64_t>& reached, std::function<void()> ended) {
  thread_ = std::jthread([this, &reached, ended = std::move(ended)] {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    run(reached);
    ended_.store(true, std::memory_order_release);
    ended();
    // The dense part is read by every token, a slot by some.
    if (make_huge(dense_.memory())) make_huge(slab_.memory().first(slab_.reached()));
    settled_.store(true, std::memory_order_release);
    ended();
  });
}

void ResidentMemory::run(std::atomic<std::uint64_t>& reached) {
  while (!dense_.finished())
    if (!bring(dense_)) return;
  while (!slab_.finished()) {
    const bool whole = bring(slab_);
    reached_.store(slab_.reached(), std::memory_order_release);
    reached.store(slab_.reached(), std::memory_order_release);
    if (!whole) return;
  }
}

/// The next piece. False where there is none, or the stage ends.
bool ResidentMemory::bring(shm::Population& part) {
  if (stop_.load(std::memory_order_relaxed)) return false;
  const std::uint64_t from = part.reached();
  Status s = part.step();
  lock(part.memory().subspan(from, part.reached() - from));
  if (!s.ok()) failure_ = std::move(s).error();
  return !failure_;
}

void ResidentMemory::lock(std::span<const std::byte> piece) {
  if (!locking_ || piece.empty()) return;
  if (::mlock(piece.data(), piece.size()) == 0) {
    locked_ += piece.size();
    return;
  }
  locking_ = false;
  spdlog::warn(
      "only {} bytes of the {} of dense weights and slab are locked in memory (mlock: {}): the system "
      "may swap the rest out. {}",
      locked_, planned_, std::strerror(errno), memlock_advice(planned_));
}

/// False where no more can be had.
bool ResidentMemory::make_huge(std::span<const std::byte> memory) {
  constexpr int kTurns = 2;  // what a read was on its way to at first
  const auto skew = reinterpret_cast<std::uintptr_t>(memory.data()) % shm::kHugePage;
  const std::uint64_t begin = skew == 0 ? 0 : shm::kHugePage - skew;
  std::vector<std::uint64_t> left, busy;
  for (std::uint64_t at = begin; at + shm::kHugePage <= memory.size(); at += shm::kHugePage)
    left.push_back(at);
  for (int turn = 0; turn < kTurns && !left.empty(); ++turn) {
    busy.clear();
    for (const std::uint64_t at : left) {
      if (stop_.load(std::memory_order_relaxed)) return false;
      const shm::Collapse c = shm::collapse(memory.data() + at);
      if (c == shm::Collapse::kRefused) return false;
      if (c == shm::Collapse::kBusy) busy.push_back(at);
    }
    left.swap(busy);
  }
  return true;
}

Status ResidentMemory::ensure(std::uint64_t from, std::uint64_t bytes) {
  if (from + bytes <= reached_.load(std::memory_order_acquire)) return {};
  return early_.ensure(from, bytes);
}

std::uint64_t ResidentMemory::huge() const {
  return shm::huge_page_bytes(dense_.memory()) + shm::huge_page_bytes(slab_.memory());
}

}  // namespace wisp::loader
