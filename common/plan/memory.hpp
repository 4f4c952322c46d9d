#pragma once
#include <cstdint>
#include <string>

namespace wisp::plan {

/// Where the kernel's files are; tests put a made-up tree there.
struct KernelFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

/// min(MemAvailable, room in every memory cgroup that encloses this process), bytes. 0 where nothing can be
/// read, at least 1 elsewhere.
std::uint64_t available_memory_in(const KernelFiles& files);

/// Cores that the CPU quotas of the enclosing cgroups leave of `cores`; at least 1.
std::uint32_t cores_within_quota(const KernelFiles& files, std::uint32_t cores);

/// Cores that this process may use: its affinity mask and its cgroups' quota. At least 1.
std::uint32_t usable_cores();

}  // namespace wisp::plan
