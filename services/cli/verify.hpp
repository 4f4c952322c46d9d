#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp verify MODEL`: reads every expert and dense tensor again and compares the checksums.
/// Adds the subcommand; its callback stores the exit code (0, or 1 after a message on stderr) in `exit_code`,
/// which must outlive the parse.
void add_verify(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
