#include "launch/topology.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace wisp::launch {

namespace {

Result<std::uint64_t> positive(const toml::table& t, const char* key, std::uint64_t otherwise) {
  const auto node = t[key];
  if (!node) return otherwise;
  const auto value = node.value<std::int64_t>();
  if (!value || *value < 0 || *value > 1'000'000'000)
    return invalid(std::string(key) + " must be a whole number from 0 to 1000000000");
  return static_cast<std::uint64_t>(*value);
}

Result<RestartLimits> read_limits(const toml::table& process) {
  RestartLimits limits;
  const auto* t = process["restart"].as_table();
  if (t == nullptr) return limits;
  WISP_ASSIGN(const std::uint64_t deaths, positive(*t, "deaths", limits.deaths));
  WISP_ASSIGN(limits.first_ms, positive(*t, "backoff_ms", limits.first_ms));
  WISP_ASSIGN(limits.max_ms, positive(*t, "backoff_max_ms", limits.max_ms));
  limits.deaths = static_cast<std::uint32_t>(deaths);
  return limits;
}

Result<ProcessSpec> read_process(const toml::table& t) {
  ProcessSpec spec;
  const auto program = t["program"].value<std::string>();
  if (!program || program->empty()) return invalid("a process needs `program = \"...\"`");
  if (program->find('/') != std::string::npos)
    return invalid("program '" + *program + "' must be a plain name: it is looked for beside wisp-launch");
  spec.program = *program;
  const auto* stages = t["stages"].as_array();
  if (stages == nullptr || stages->empty())
    return invalid("process '" + *program + "' needs `stages = [...]`");
  for (const auto& node : *stages) {
    const auto name = node.value<std::string>();
    if (!name) return invalid("`stages` of '" + *program + "' must hold names");
    WISP_ASSIGN(const shm::StageId id, stage_named(*name));
    spec.stages.push_back(id);
  }
  WISP_ASSIGN(spec.restart, read_limits(t));
  return spec;
}

Status check_complete(const Topology& t) {
  std::array<int, shm::kStages> hosted{};
  for (const ProcessSpec& p : t.processes)
    for (shm::StageId s : p.stages) ++hosted[shm::index(s)];
  for (shm::StageId s : shm::kRunningStages)
    if (hosted[shm::index(s)] != 1 && !(shm::is_optional(s) && hosted[shm::index(s)] == 0))
      return invalid("stage '" + std::string(shm::name_of(s)) + "' is hosted " +
                     std::to_string(hosted[shm::index(s)]) + " times; it must be once");
  return {};
}

Result<Topology> parse(const std::string& text, const std::string& name) {
  Topology topology;
  topology.name = name;
  try {
    const toml::table file = toml::parse(text);
    const auto* processes = file["process"].as_array();
    if (processes == nullptr) return invalid("no [[process]] in it");
    for (const auto& node : *processes) {
      const auto* t = node.as_table();
      if (t == nullptr) return invalid("`process` must be tables: [[process]]");
      WISP_ASSIGN(auto spec, read_process(*t));
      topology.processes.push_back(std::move(spec));
    }
  } catch (const toml::parse_error& e) {
    std::ostringstream where;
    where << e.description() << " at " << e.source().begin;
    return invalid(where.str());
  }
  WISP_TRY(check_complete(topology));
  return topology;
}

std::string names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  std::string list;
  for (const std::string& n : names) list += (list.empty() ? "" : ", ") + n;
  return list.empty() ? "none" : list;
}

}  // namespace

bool ProcessSpec::hosts(shm::StageId s) const {
  return std::find(stages.begin(), stages.end(), s) != stages.end();
}

Result<shm::StageId> stage_named(const std::string& name) {
  std::string list;
  for (shm::StageId s : shm::kRunningStages) {
    if (shm::name_of(s) == name) return s;
    list += (list.empty() ? "" : ", ") + std::string(shm::name_of(s));
  }
  return invalid("there is no stage '" + name + "'; the stages are " + list);
}

Result<Topology> parse_topology(const std::string& text, const std::string& name) {
  auto t = parse(text, name);
  if (!t.ok()) return std::move(t).error().within("topology " + name);
  return t;
}

Result<Topology> load_topology(const std::string& name, const std::string& directory) {
  const bool is_path = name.ends_with(".toml");
  if (!is_path && name.find('/') != std::string::npos)
    return invalid("topology '" + name + "': a name, or the path of a .toml file");
  const std::string path = is_path ? name : directory + "/" + name + ".toml";
  std::ifstream file(path);
  if (!file)
    return not_found("topology '" + name + "' is not there (" + path +
                     "); there are: " + names_in(directory));
  std::ostringstream text;
  text << file.rdbuf();
  return parse_topology(text.str(), name);
}

}  // namespace wisp::launch
