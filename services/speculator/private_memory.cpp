#include "services/speculator/private_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "shm/population.hpp"

namespace wisp::speculator {

Result<PrivateMemory> PrivateMemory::take(std::uint64_t bytes) {
  constexpr std::uint64_t kHuge = shm::kHugePage;
  PrivateMemory out;
  // Room to begin at a huge page; what lies before and behind is never touched.
  const std::uint64_t room = bytes + kHuge;
  void* at =
      ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return exhausted(std::to_string(bytes) + " bytes of memory are not there (" + std::strerror(errno) + ")");
  out.mapped_ = {static_cast<std::byte*>(at), room};
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  out.bytes_ = out.mapped_.subspan((begin + kHuge - 1) / kHuge * kHuge - begin, bytes);
  // A kernel that has none, or whose setting is `never`, gives small ones.
  static_cast<void>(::madvise(out.bytes_.data(), bytes / kHuge * kHuge, MADV_HUGEPAGE));
  shm::Population all(out.bytes_, shm::Population::Access::kWrite);
  WISP_TRY(all.reach(bytes));
  return out;
}

PrivateMemory::~PrivateMemory() {
  if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
}

}  // namespace wisp::speculator
