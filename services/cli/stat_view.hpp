#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "services/cli/run_state.hpp"

namespace wisp::cli {

/// Everything that the regions tell, as one object: `stages`, `slots`, `memory`, `requests`, `hops`. Reads
/// shared memory alone; a stage may be stopped, dead or in a debugger.
nlohmann::ordered_json stat_json(const RunState& state);
/// The same for people.
std::string stat_text(const nlohmann::ordered_json& stat);

/// What a stage waits for, in words: "expert 17 of layer 3".
std::string wait_text(shm::WaitFor what, std::uint64_t detail);
/// The value below which a share `q` of the counts lies, ns: the middle of its bucket. 0 = no counts.
double quantile_ns(const stats::Histogram& h, double q);

}  // namespace wisp::cli
