#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp trace`: routing traces, recorded and replayed.
void add_trace(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
