#pragma once
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "model/inspect.hpp"

namespace wisp::cli {

/// The inspection as one object, and as text for people.
nlohmann::ordered_json inspect_json(const model::Inspection& i);
std::string inspect_text(const model::Inspection& i);

/// Adds the subcommand; its callback stores the exit code (0, or 1 after a message on stderr) in `exit_code`,
/// which outlives parsing.
void add_inspect(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
