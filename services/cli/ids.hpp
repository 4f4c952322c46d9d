#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace wisp::cli {

/// Whole numbers with a comma between two; nullopt for anything else.
std::optional<std::vector<std::uint32_t>> read_ids(const std::string& text);
std::string join_ids(const std::vector<std::uint32_t>& ids);

}  // namespace wisp::cli
