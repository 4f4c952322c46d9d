#include "services/gateway/text/long_text.hpp"

#include "services/gateway/text/unicode.hpp"

namespace wisp::text {

std::vector<std::string_view> cut_long(std::string_view text) {
  if (text.empty()) return {};
  if (text.size() <= kMostAlike) return {text};
  std::vector<std::string_view> out;
  std::size_t begin = 0, characters = 0, alike = 0;
  bool space = false;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t at = pos;
    const char32_t c = next_char(text, pos);
    // Python's str.isspace, which the publisher's code asks, knows four separators more.
    const bool now = is_space(c) || (c >= 0x1C && c <= 0x1F);
    if (characters == kMostCharacters) {
      out.push_back(text.substr(begin, at - begin));
      begin = at;
      characters = alike = 0;
    }
    alike = alike > 0 && now == space ? alike + 1 : 1;
    space = now;
    ++characters;
    if (alike > kMostAlike) {
      out.push_back(text.substr(begin, at - begin));
      begin = at;
      alike = 1;
    }
  }
  out.push_back(text.substr(begin));
  return out;
}

}  // namespace wisp::text
