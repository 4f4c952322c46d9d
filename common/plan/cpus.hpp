#pragma once
#include <cstdint>

#include "plan/cgroup.hpp"

namespace wisp::plan {

/// Cores that the CPU quotas of the enclosing cgroups leave of `cores`; at least 1.
std::uint32_t cores_within_quota(const KernelFiles& files, std::uint32_t cores);

/// Cores that this process may use: those of its affinity mask, as hwloc sees the machine, within its
/// cgroups' quota, both as they were at the first call. At least 1.
std::uint32_t usable_cores();

}  // namespace wisp::plan
