#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp cache`: what the expert cache learned of a model.
void add_cache(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
