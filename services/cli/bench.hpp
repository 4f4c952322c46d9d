#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// `wisp bench kernels`: what the kernels reach on this machine, beside what it allows.
/// Adds the subcommand; its callback stores the exit code (0, or 1 after a message on stderr) in `exit_code`,
/// which must outlive the parse.
void add_bench(CLI::App& app, int& exit_code);
/// Adds `stream` to it: random experts from the drive through the loader's own reading, beside plain reads.
void add_bench_stream(CLI::App& bench, int& exit_code);
/// Adds `decode` and `prefill`: an engine's requests, beside plain reads.
void add_bench_decode(CLI::App& bench, int& exit_code);
void add_bench_prefill(CLI::App& bench, int& exit_code);

}  // namespace wisp::cli
