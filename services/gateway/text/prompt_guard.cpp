#include "services/gateway/text/prompt_guard.hpp"

#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "services/gateway/text/unicode.hpp"

namespace wisp::text {
namespace {

using Json = nlohmann::ordered_json;

// A mark has no letters, so that a template's upper() or title() leaves it alone, and no white space to trim:
// U+E000 number U+E001, or U+E000 number U+E002 index U+E001 where a token of one character had to go.
constexpr std::string_view kOpen = "\xEE\x80\x80";
constexpr std::string_view kClose = "\xEE\x80\x81";
constexpr std::string_view kIndex = "\xEE\x80\x82";

std::string random_number() {
  std::uint64_t value = 0;
  while (::getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value))
    WISP_CHECK(errno == EINTR);
  return std::to_string(value);
}

}  // namespace

PromptGuard::PromptGuard(const Tokenizer& tokenizer, const Json& source) : tokenizer_(tokenizer) {
  const std::string all = source.dump(-1, ' ', false, Json::error_handler_t::replace);
  do {
    open_ = std::string(kOpen) + random_number();
  } while (all.find(open_) != std::string::npos);
}

std::string PromptGuard::broken(std::string_view text) const {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t begin = pos;
    if (!tokenizer_.control_at(text, begin)) {
      ++pos;
      continue;
    }
    // A mark after the first character breaks every token that begins here; one that begins later gets its
    // own.
    next_char(text, pos);
    out.append(text.substr(copied, begin - copied));
    const std::optional<Segment> single = tokenizer_.control_at(text.substr(0, pos), begin);
    if (single) {
      out.append(open_).append(kIndex).append(std::to_string(*single->id)).append(kClose);
    } else {
      out.append(text.substr(begin, pos - begin)).append(open_).append(kClose);
    }
    copied = pos;
  }
  return out.append(text.substr(copied));
}

bool PromptGuard::is_shallow(const Json& value, std::size_t depth) {
  if (!value.is_structured()) return true;
  if (depth > kMaxDepth) return false;
  for (const Json& element : value) {
    if (!is_shallow(element, depth + 1)) return false;
  }
  return true;
}

Status PromptGuard::guard(Json& value) const {
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    if (find_invalid_utf8(text) != std::string::npos) return invalid("a text is not UTF-8");
    text = broken(text);
  } else if (value.is_array()) {
    for (Json& element : value) WISP_TRY(guard(element));
  } else if (value.is_object()) {
    Json out = Json::object();
    for (auto& [key, element] : value.items()) {
      WISP_TRY(guard(element));
      out[broken(key)] = std::move(element);
    }
    value = std::move(out);
  }
  return {};
}

std::string PromptGuard::mend(std::string_view text) const {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t at = text.find(open_); at != std::string_view::npos; at = text.find(open_, copied)) {
    out.append(text.substr(copied, at - copied));
    copied = at + open_.size();
    std::string_view rest = text.substr(copied);
    if (rest.starts_with(kClose)) {
      copied += kClose.size();
    } else if (rest.starts_with(kIndex)) {
      rest.remove_prefix(kIndex.size());
      std::uint32_t id = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), id);
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
      if (error == std::errc() && rest.starts_with(kClose)) {
        out.append(tokenizer_.piece_bytes(id, true));
        copied = text.size() - rest.size() + kClose.size();
      }
    }
  }
  return out.append(text.substr(copied));
}

}  // namespace wisp::text
