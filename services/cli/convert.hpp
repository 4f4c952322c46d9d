#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp convert SRC DST`: a Hugging Face checkpoint to a WISP model folder.
/// Adds the subcommand; its callback stores the exit code (0, or 1 after a message on stderr) in `exit_code`,
/// which must outlive the parse.
void add_convert(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
