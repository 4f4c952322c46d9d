#include "plan/cgroup.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace wisp::plan {

bool Membership::has(const std::string& controller) const {
  return std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
}

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

void walk_up(const std::string& mount, std::string path, FunctionRef<void(const std::string&)> visit) {
  while (true) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    visit(mount + path);
    const auto slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return;
    path.resize(slash);
  }
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t n = 0;
  if (in >> n) return n;
  return std::nullopt;
}

}  // namespace wisp::plan
