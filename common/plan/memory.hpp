#pragma once
#include <cstdint>

#include "plan/cgroup.hpp"
#include "plan/run_plan.hpp"

namespace wisp::plan {

/// `available`: min(MemAvailable, room in every memory cgroup that encloses this process), bytes; 0 where
/// nothing can be read, at least 1 elsewhere.
MemoryHere memory_in(const KernelFiles& files);
std::uint64_t available_memory_in(const KernelFiles& files);

}  // namespace wisp::plan
