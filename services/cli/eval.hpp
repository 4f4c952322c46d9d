#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp eval`: scores a text, or lines of ids, token by token.
void add_eval(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
