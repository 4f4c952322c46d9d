#include "plan/memory.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "plan/cgroup.hpp"

namespace wisp::plan {

namespace {

constexpr std::uint64_t kNoLimit = MemoryHere::kNoLimit;
/// cgroup v1 says "no limit" as the largest number of whole pages.
constexpr std::uint64_t kLimitIsNone = std::uint64_t{1} << 60;

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

/// Takes one limit into account, of a group that uses so much.
void hold(MemoryHere& here, std::uint64_t limit, std::uint64_t used, std::uint64_t reclaimable) {
  if (limit >= kLimitIsNone) return;
  const std::uint64_t held = used > reclaimable ? used - reclaimable : 0;
  here.group_limit = std::min(here.group_limit, limit);
  here.group_room = std::min(here.group_room, limit > held ? limit - held : 0);
}

void look_at_v1(const std::string& folder, MemoryHere& here) {
  const auto limit = read_number(folder + "/memory.limit_in_bytes");
  const auto used = read_number(folder + "/memory.usage_in_bytes");
  if (!limit || !used) return;
  hold(here, *limit, *used,
       sum_of_keys(folder + "/memory.stat", {"total_inactive_file", "total_active_file"}));
}

void look_at_v2(const std::string& folder, MemoryHere& here) {
  const auto used = read_number(folder + "/memory.current");
  if (!used) return;
  const std::uint64_t cache =
      sum_of_keys(folder + "/memory.stat", {"inactive_file", "active_file", "slab_reclaimable"});
  // "max" is no number and so no limit. Above memory.high a process is slowed to a crawl: as good as a limit.
  for (const char* name : {"/memory.max", "/memory.high"})
    if (const auto limit = read_number(folder + name)) hold(here, *limit, *used, cache);
}

}  // namespace

MemoryHere memory_in(const KernelFiles& files) {
  std::uint64_t machine = sum_of_keys(files.proc + "/meminfo", {"MemAvailable"}) * 1024;
  if (machine == 0) machine = kNoLimit;
  MemoryHere here(0);
  for (const Membership& m : memberships(files)) {
    if (m.has("memory")) {
      walk_up(files.cgroup + "/memory", m.path, [&](const std::string& f) { look_at_v1(f, here); });
    } else if (m.controllers.empty()) {
      walk_up(files.cgroup, m.path, [&](const std::string& f) { look_at_v2(f, here); });
      walk_up(files.cgroup + "/unified", m.path, [&](const std::string& f) { look_at_v2(f, here); });
    }
  }
  const std::uint64_t least = std::min(machine, here.group_room);
  here.available = least == kNoLimit ? 0 : std::max<std::uint64_t>(least, 1);
  return here;
}

std::uint64_t available_memory_in(const KernelFiles& files) {
  return memory_in(files).available;
}

MemoryHere memory_here() {
  return memory_in({});
}

std::uint64_t available_memory() {
  return memory_here().available;
}

}  // namespace wisp::plan
