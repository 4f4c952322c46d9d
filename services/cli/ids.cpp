#include "services/cli/ids.hpp"

#include <charconv>

namespace wisp::cli {

std::optional<std::vector<std::uint32_t>> read_ids(const std::string& text) {
  std::vector<std::uint32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    std::uint32_t id = 0;
    const auto parsed = std::from_chars(at, end, id);
    if (parsed.ec != std::errc{}) return std::nullopt;
    ids.push_back(id);
    if (parsed.ptr == end) return ids;
    if (*parsed.ptr != ',') return std::nullopt;
    at = parsed.ptr + 1;
  }
}

std::string join_ids(const std::vector<std::uint32_t>& ids) {
  std::string text;
  for (std::uint32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace wisp::cli
