#pragma once
#include <CLI/CLI.hpp>

/// The subcommands of `wisp` that need a pipeline. Each adds itself; its callback stores the exit code, which
/// must outlive the parse: 0, 1 after an error on stderr, 130 where Ctrl-C cut the answer of `run`.
namespace wisp::cli {

void add_run(CLI::App& app, int& exit_code);
/// `wisp trace record`: `run` that leaves a routing trace.
void add_trace_record(CLI::App& trace, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_stat(CLI::App& app, int& exit_code);

}  // namespace wisp::cli
