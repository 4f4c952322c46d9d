#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace wisp::text {

/// Kimi's cuts, which come before everything else and which no merge crosses: parts of at most
/// `kMostCharacters`, and inside of each a cut before a character that would make more than `kMostAlike` in a
/// row that all are spaces or all are not. Views into well-formed `text`, in order; an empty text has none.
std::vector<std::string_view> cut_long(std::string_view text);

constexpr std::size_t kMostCharacters = 400'000;
constexpr std::size_t kMostAlike = 25'000;

}  // namespace wisp::text
