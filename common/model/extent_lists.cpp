#include "model/extent_lists.hpp"

#include <charconv>

namespace wisp::model {
namespace {

/// A string of JSON cannot hold this: the quotes in it would be escaped.
constexpr std::string_view kKey = "\"extents\":";
constexpr std::size_t kHexDigits = 16;

class Scanner {
 public:
  explicit Scanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool literal(std::string_view s) {
    if (static_cast<std::size_t>(end_ - at_) < s.size() || std::string_view(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }
  bool entry(ExpertExtent& x) {
    if (!literal("[")) return false;
    const char* const digits = at_;
    const auto offset = std::from_chars(at_, end_, x.offset);
    if (offset.ec != std::errc()) return false;
    at_ = offset.ptr;
    if (*digits == '0' && at_ - digits > 1) return false;  // JSON has no such number
    if (!literal(",\"") || static_cast<std::size_t>(end_ - at_) < kHexDigits) return false;
    const auto sum = std::from_chars(at_, at_ + kHexDigits, x.checksum, 16);
    if (sum.ec != std::errc() || sum.ptr != at_ + kHexDigits) return false;
    at_ += kHexDigits;
    return literal("\"]");
  }
  bool list(std::vector<ExpertExtent>& out) {
    if (!literal("[")) return false;
    do {
      if (!entry(out.emplace_back())) return false;
    } while (literal(","));
    return literal("]");
  }
  const char* at() const { return at_; }

 private:
  const char* at_;
  const char* end_;
};

}  // namespace

ExtentLists cut_extent_lists(std::string_view text) {
  ExtentLists out;
  std::size_t kept = 0;  // text before this is in `rest`
  for (std::size_t from = 0;;) {
    const std::size_t key = text.find(kKey, from);
    if (key == text.npos) break;
    const std::size_t begin = from = key + kKey.size();
    std::vector<ExpertExtent> list;
    if (!out.lists.empty()) list.reserve(out.lists.back().size());
    Scanner scanner(text.substr(begin));
    if (!scanner.list(list)) continue;
    out.rest += text.substr(kept, begin - kept);
    out.rest += std::to_string(out.lists.size());
    kept = from = static_cast<std::size_t>(scanner.at() - text.data());
    out.lists.push_back(std::move(list));
  }
  out.rest += text.substr(kept);
  return out;
}

}  // namespace wisp::model
