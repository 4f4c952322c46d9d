#pragma once
#include <string>
#include <vector>

#include "base/result.hpp"
#include "launch/restart_policy.hpp"
#include "shm/stages.hpp"

namespace wisp::launch {

/// One process of a topology: a program and the stages that it hosts, the first on its main thread.
struct ProcessSpec {
  std::string program;
  std::vector<shm::StageId> stages;
  RestartLimits restart;

  bool hosts(shm::StageId s) const;
};

/// Which processes a run consists of. Every running stage is hosted exactly once.
struct Topology {
  std::string name;
  std::vector<ProcessSpec> processes;  ///< in the order of their start
};

/// Reads TOML text. Errors: kInvalid names the table and what is wrong with it.
Result<Topology> parse_topology(const std::string& text, const std::string& name);

/// Reads `<directory>/<name>.toml`; a name that ends in ".toml" is a path of its own. Errors: kNotFound lists
/// what there is; kInvalid.
Result<Topology> load_topology(const std::string& name, const std::string& directory);

/// The stage of that name among those that run, or an error that lists them.
Result<shm::StageId> stage_named(const std::string& name);

}  // namespace wisp::launch
