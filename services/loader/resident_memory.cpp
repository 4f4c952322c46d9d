#include "services/loader/resident_memory.hpp"

#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "services/loader/memlock.hpp"

namespace wisp::loader {

ResidentMemory::ResidentMemory(std::span<std::byte> dense, std::span<std::byte> slab)
    : dense_(dense, shm::Population::Access::kWrite),
      slab_(slab, shm::Population::Access::kWrite),
      planned_(dense.size() + slab.size()) {
  shm::advise_huge_pages(dense);
  shm::advise_huge_pages(slab);
}

Status ResidentMemory::step() {
  if (!dense_.finished()) return step(dense_);
  if (!slab_.finished()) return step(slab_);
  return {};
}

Status ResidentMemory::step(shm::Population& part) {
  const std::uint64_t from = part.reached();
  WISP_TRY(part.step());
  lock(part.memory().subspan(from, part.reached() - from));
  return {};
}

std::uint64_t ResidentMemory::cut() {
  slab_.cut();
  return slab_.size();
}

void ResidentMemory::lock(std::span<const std::byte> piece) {
  if (!locking_) return;
  if (::mlock(piece.data(), piece.size()) == 0) {
    locked_ += piece.size();
    return;
  }
  locking_ = false;
  spdlog::warn(
      "only {} bytes of the {} of dense weights and slab are locked in memory (mlock: {}): the system may "
      "swap "
      "the rest out. {}",
      locked_, planned_, std::strerror(errno), memlock_advice(planned_));
}

std::uint64_t ResidentMemory::huge() const {
  return shm::huge_page_bytes(dense_.memory()) + shm::huge_page_bytes(slab_.memory());
}

}  // namespace wisp::loader
