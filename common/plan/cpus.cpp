#include "plan/cpus.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace wisp::plan {

namespace {

/// Cores that one group's quota allows, or nothing.
std::optional<std::uint64_t> quota_v1(const std::string& folder) {
  std::ifstream in(folder + "/cpu.cfs_quota_us");
  std::int64_t quota = -1;
  const auto period = read_number(folder + "/cpu.cfs_period_us");
  if (!(in >> quota) || quota <= 0 || !period || *period == 0) return std::nullopt;
  return (static_cast<std::uint64_t>(quota) + *period - 1) / *period;
}

std::optional<std::uint64_t> quota_v2(const std::string& folder) {
  std::ifstream in(folder + "/cpu.max");
  std::string quota;
  std::uint64_t period = 0;
  if (!(in >> quota >> period) || quota == "max" || period == 0) return std::nullopt;
  const std::uint64_t microseconds = std::strtoull(quota.c_str(), nullptr, 10);
  if (microseconds == 0) return std::nullopt;
  return (microseconds + period - 1) / period;
}

/// Cores of the CPUs that this process is bound to. Hardware threads of one core share its units for
/// multiplication and its path to memory: a second one adds nothing but turns at the barrier.
std::uint32_t cores_in_mask() {
  const std::uint32_t fallback = std::max(1u, std::thread::hardware_concurrency());
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return fallback;
  // Only what is counted: a look at caches and devices takes long on large machines.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_flags(topology,
                           HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  int cores = 0;
  if (hwloc_topology_load(topology) == 0) {
    cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    // Some virtual machines and containers do not say what a core is.
    if (cores <= 0) cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
  }
  hwloc_topology_destroy(topology);
  return cores > 0 ? static_cast<std::uint32_t>(cores) : fallback;
}

}  // namespace

std::uint32_t cores_within_quota(const KernelFiles& files, std::uint32_t cores) {
  std::uint64_t least = std::max<std::uint32_t>(cores, 1);
  const auto take = [&](std::optional<std::uint64_t> n) {
    if (n) least = std::min(least, std::max<std::uint64_t>(*n, 1));
  };
  for (const Membership& m : memberships(files)) {
    if (m.has("cpu")) {
      for (const char* mount : {"/cpu", "/cpu,cpuacct"})
        walk_up(files.cgroup + mount, m.path, [&](const std::string& f) { take(quota_v1(f)); });
    } else if (m.controllers.empty()) {
      walk_up(files.cgroup, m.path, [&](const std::string& f) { take(quota_v2(f)); });
    }
  }
  return static_cast<std::uint32_t>(least);
}

std::uint32_t usable_cores() {
  static const std::uint32_t cores = cores_within_quota({}, cores_in_mask());
  return cores;
}

}  // namespace wisp::plan
