#include "plan/memory.hpp"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "plan/run_plan.hpp"

namespace wisp::plan {

namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
/// cgroup v1 says "no limit" as the largest number of whole pages.
constexpr std::uint64_t kLimitIsNone = std::uint64_t{1} << 60;

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t n = 0;
  if (in >> n) return n;
  return std::nullopt;
}

/// Sum of the named lines of a file of "key value" (or "key: value") lines.
std::uint64_t sum_of_keys(const std::string& path, const std::vector<std::string>& keys) {
  std::ifstream in(path);
  std::uint64_t sum = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t n = 0;
    if (!(words >> key >> n)) continue;
    if (!key.empty() && key.back() == ':') key.pop_back();
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) sum += n;
  }
  return sum;
}

/// One line of /proc/self/cgroup.
struct Membership {
  std::vector<std::string> controllers;  ///< empty in the unified hierarchy
  std::string path;
  bool has(const std::string& controller) const {
    return std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
  }
};

std::vector<Membership> memberships(const KernelFiles& files) {
  std::vector<Membership> all;
  std::ifstream in(files.proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    if (first == std::string::npos) continue;
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    Membership m;
    std::istringstream names(line.substr(first + 1, second - first - 1));
    for (std::string name; std::getline(names, name, ',');) m.controllers.push_back(name);
    m.path = line.substr(second + 1);
    all.push_back(std::move(m));
  }
  return all;
}

/// Calls `visit` for the folder of a group and of each one above it. Inside a container the path may name
/// folders that are not mounted here; what cannot be read there limits nothing.
void walk_up(const std::string& mount, std::string path,
             const std::function<void(const std::string&)>& visit) {
  while (true) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    visit(mount + path);
    const auto slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return;
    path.resize(slash);
  }
}

std::uint64_t room(std::uint64_t limit, std::uint64_t used, std::uint64_t reclaimable) {
  if (limit >= kLimitIsNone) return kNoLimit;
  const std::uint64_t held = used > reclaimable ? used - reclaimable : 0;
  return limit > held ? limit - held : 0;
}

std::uint64_t room_v1(const std::string& folder) {
  const auto limit = read_number(folder + "/memory.limit_in_bytes");
  const auto used = read_number(folder + "/memory.usage_in_bytes");
  if (!limit || !used) return kNoLimit;
  return room(*limit, *used,
              sum_of_keys(folder + "/memory.stat", {"total_inactive_file", "total_active_file"}));
}

std::uint64_t room_v2(const std::string& folder) {
  const auto used = read_number(folder + "/memory.current");
  if (!used) return kNoLimit;
  const std::uint64_t cache =
      sum_of_keys(folder + "/memory.stat", {"inactive_file", "active_file", "slab_reclaimable"});
  // "max" is no number and so no limit. Above memory.high a process is slowed to a crawl: as good as a limit.
  std::uint64_t least = kNoLimit;
  for (const char* name : {"/memory.max", "/memory.high"})
    if (const auto limit = read_number(folder + name)) least = std::min(least, room(*limit, *used, cache));
  return least;
}

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

}  // namespace

std::uint64_t available_memory_in(const KernelFiles& files) {
  std::uint64_t least = sum_of_keys(files.proc + "/meminfo", {"MemAvailable"}) * 1024;
  if (least == 0) least = kNoLimit;
  for (const Membership& m : memberships(files)) {
    const auto take = [&](std::uint64_t n) { least = std::min(least, n); };
    if (m.has("memory")) {
      walk_up(files.cgroup + "/memory", m.path, [&](const std::string& f) { take(room_v1(f)); });
    } else if (m.controllers.empty()) {
      walk_up(files.cgroup, m.path, [&](const std::string& f) { take(room_v2(f)); });
      walk_up(files.cgroup + "/unified", m.path, [&](const std::string& f) { take(room_v2(f)); });
    }
  }
  return least == kNoLimit ? 0 : std::max<std::uint64_t>(least, 1);
}

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
  cpu_set_t set;
  CPU_ZERO(&set);
  // More cores than the set holds make the call fail; such a machine gets what the set could name.
  const int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : CPU_SETSIZE;
  return cores_within_quota({}, static_cast<std::uint32_t>(std::max(n, 1)));
}

std::uint64_t available_memory() {
  return available_memory_in({});
}

}  // namespace wisp::plan
