#pragma once
#include <CLI/CLI.hpp>

namespace wisp::cli {

/// For options that take bytes, as in 512M or 8G: refuses what is no size, and 0.
CLI::Validator size_flag();

}  // namespace wisp::cli
