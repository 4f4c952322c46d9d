#include "plan/memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "plan/cgroup.hpp"
#include "plan/run_plan.hpp"

namespace wisp::plan {

namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
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

std::uint64_t available_memory() {
  return available_memory_in({});
}

}  // namespace wisp::plan
