#include "services/gateway/text/space_marks.hpp"

#include <charconv>
#include <nlohmann/json.hpp>

namespace wisp::text {

using Json = nlohmann::json;

namespace {
std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t next = text.find(what, at);
    out += text.substr(at, next - at);
    if (next == std::string_view::npos) return out;
    out += by;
    at = next + what.size();
  }
}

/// Prepend "▁" and Replace " " by "▁", alone or in a Sequence.
Status read_normalizer(const Json& step, std::size_t depth, SpaceMarks& marks, bool& replaces) {
  const std::string type = step.is_object() ? text_of(step, "type") : "";
  if (type == "Sequence" && depth < 4 && step.contains("normalizers") && step["normalizers"].is_array()) {
    for (const Json& part : step["normalizers"]) WISP_TRY(read_normalizer(part, depth + 1, marks, replaces));
    return {};
  }
  if (type == "Prepend" && text_of(step, "prepend") == SpaceMarks::kMark) {
    marks.prepend = SpaceMarks::Prepend::kAlways;
    return {};
  }
  const bool spaces = type == "Replace" && step.contains("pattern") && step["pattern"].is_object() &&
                      text_of(step["pattern"], "String") == " " &&
                      text_of(step, "content") == SpaceMarks::kMark;
  if (!spaces)
    return unsupported("normalizer: a step \"" + type +
                       "\" with byte_fallback; this build knows Prepend and Replace of "
                       "spaces by U+2581");
  replaces = true;
  return {};
}

Status read_metaspace(const Json& step, SpaceMarks& marks) {
  const std::string type = step.is_object() ? text_of(step, "type") : "";
  if (type != "Metaspace" || text_of(step, "replacement") != SpaceMarks::kMark)
    return unsupported("pre_tokenizer: type \"" + type +
                       "\" with byte_fallback; this build knows Metaspace of U+2581");
  const std::string scheme = text_of(step, "prepend_scheme");
  marks.prepend = scheme == "first"   ? SpaceMarks::Prepend::kFirst
                  : scheme == "never" ? SpaceMarks::Prepend::kNever
                                      : SpaceMarks::Prepend::kAlways;
  if (scheme.empty() && step.value("add_prefix_space", true) == false)
    marks.prepend = SpaceMarks::Prepend::kNever;
  marks.unless_there = true;
  const auto split = step.find("split");
  marks.split = split == step.end() || !split->is_boolean() || split->get<bool>();
  return {};
}
}  // namespace

Result<SpaceMarks> SpaceMarks::parse(const Json* normalizer, const Json* pre_tokenizer) {
  SpaceMarks marks;
  bool replaces = false;
  if (normalizer != nullptr) WISP_TRY(read_normalizer(*normalizer, 0, marks, replaces));
  if (pre_tokenizer != nullptr) {
    if (normalizer != nullptr) return unsupported("pre_tokenizer: Metaspace beside a normalizer");
    WISP_TRY(read_metaspace(*pre_tokenizer, marks));
  } else if (!replaces) {
    return unsupported("pre_tokenizer: none, and no normalizer that marks spaces");
  }
  return marks;
}

std::string SpaceMarks::apply(std::string_view text, bool first) const {
  if (text.empty()) return {};
  std::string out = replaced(text, " ", kMark);
  const bool wanted = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
  if (wanted && !(unless_there && out.starts_with(kMark))) out.insert(0, kMark);
  return out;
}

void SpaceMarks::cut(std::string_view marked, std::vector<std::string_view>& out) const {
  out.clear();
  while (!marked.empty()) {
    std::size_t first = marked.starts_with(kMark) ? kMark.size() : 0;
    if (words && !split)
      while (marked.substr(first).starts_with(kMark)) first += kMark.size();
    const std::size_t next = split || words ? marked.find(kMark, first) : std::string_view::npos;
    const std::size_t n = next == std::string_view::npos ? marked.size() : next;
    out.push_back(marked.substr(0, n));
    marked.remove_prefix(n);
  }
}

std::string SpaceMarks::bytes_of(std::string_view entry) {
  if (entry.size() == 6 && entry.starts_with("<0x") && entry.ends_with('>')) {
    unsigned byte = 0;
    const auto read = std::from_chars(entry.data() + 3, entry.data() + 5, byte, 16);
    if (read.ec == std::errc() && read.ptr == entry.data() + 5)
      return std::string(1, static_cast<char>(byte));
  }
  return replaced(entry, kMark, " ");
}

}  // namespace wisp::text
