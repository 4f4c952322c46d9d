#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.hpp"

/// The cgroups that enclose this process, v1 and v2.
namespace wisp::plan {

/// Where the kernel's files are; tests put a made-up tree there.
struct KernelFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

/// One line of /proc/self/cgroup.
struct Membership {
  std::vector<std::string> controllers;  ///< empty in the unified hierarchy
  std::string path;
  bool has(const std::string& controller) const;
};
std::vector<Membership> memberships(const KernelFiles& files);

/// Calls `visit` for the folder of a group and of each one above it. Inside a container the path may name
/// folders that are not mounted here; what cannot be read there limits nothing.
void walk_up(const std::string& mount, std::string path, FunctionRef<void(const std::string&)> visit);

/// The number that a file begins with, or nothing.
std::optional<std::uint64_t> read_number(const std::string& path);

}  // namespace wisp::plan
