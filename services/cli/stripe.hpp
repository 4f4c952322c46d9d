#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp stripe MODEL`: divides the experts of a model over several drives, or says how they are divided.
/// Adds the subcommand; its callback stores the exit code (0, or 1 after a message on stderr) in `exit_code`,
/// which must outlive the parse.
void add_stripe(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
