#pragma once
#include <cstddef>
#include <string_view>

namespace wisp {

/// Stops a text of a million brackets, which costs a JSON parser a hundred times its size in memory.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// Whether a JSON text nests deeper than kMaxJsonDepth. Counted before the parse: the parser itself has no
/// limit.
inline bool json_too_deep(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

}  // namespace wisp
