#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp synth DST`: a random model in the shape of a real one, for measurements.
/// Adds the subcommand; its callback stores the exit code (0, or 1 after a message on stderr) in `exit_code`,
/// which must outlive the parse.
void add_synth(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
