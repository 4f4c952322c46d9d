#pragma once
#include <cstdint>

#include "plan/cgroup.hpp"

namespace wisp::plan {

/// min(MemAvailable, room in every memory cgroup that encloses this process), bytes. 0 where nothing can be
/// read, at least 1 elsewhere.
std::uint64_t available_memory_in(const KernelFiles& files);

}  // namespace wisp::plan
