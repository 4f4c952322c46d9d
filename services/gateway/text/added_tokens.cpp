#include "services/gateway/text/added_tokens.hpp"

#include <algorithm>

#include "services/gateway/text/unicode.hpp"

namespace wisp::text {
namespace {

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0) {
    std::size_t before = begin;
    if (is_word(previous_char(text, before))) return true;
  }
  if (end < text.size()) {
    std::size_t after = end;
    if (is_word(next_char(text, after))) return true;
  }
  return false;
}

std::size_t strip_left(std::string_view text, std::size_t begin, std::size_t floor) {
  while (begin > floor) {
    std::size_t before = begin;
    if (!is_space(previous_char(text, before))) break;
    begin = before;
  }
  return std::max(begin, floor);
}

std::size_t strip_right(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    std::size_t after = end;
    if (!is_space(next_char(text, after))) break;
    end = after;
  }
  return end;
}

}  // namespace

std::uint32_t AddedTokenMatcher::child(std::uint32_t node, char byte) const {
  for (const auto& [label, target] : nodes_[node].next) {
    if (label == byte) return target;
  }
  return 0;
}

void AddedTokenMatcher::add(std::string_view content, const AddedToken& token) {
  if (content.empty()) return;
  std::uint32_t node = 0;
  for (const char byte : content) {
    std::uint32_t target = child(node, byte);
    if (target == 0) {
      target = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].next.emplace_back(byte, target);
      if (node == 0) roots_[static_cast<std::uint8_t>(byte)] = target;
    }
    node = target;
  }
  nodes_[node].rule = static_cast<std::int32_t>(rules_.size());
  rules_.push_back({token.id, token.control, token.lstrip, token.rstrip, token.single_word});
}

const AddedTokenMatcher::Rule* AddedTokenMatcher::longest(std::string_view text, std::size_t begin,
                                                          std::size_t& end) const {
  const Rule* best = nullptr;
  std::uint32_t node = roots_[static_cast<std::uint8_t>(text[begin])];
  for (std::size_t at = begin + 1; node != 0; ++at) {
    if (nodes_[node].rule >= 0) {
      best = &rules_[static_cast<std::size_t>(nodes_[node].rule)];
      end = at;
    }
    if (at >= text.size()) break;
    node = child(node, text[at]);
  }
  return best;
}

std::optional<Segment> AddedTokenMatcher::at(std::string_view text, std::size_t begin) const {
  std::size_t end = begin;
  const Rule* rule = longest(text, begin, end);
  if (rule == nullptr) return std::nullopt;
  return Segment{rule->id, begin, end};
}

std::vector<Segment> AddedTokenMatcher::split(std::string_view text, bool keep_control) const {
  std::vector<Segment> out;
  std::size_t done = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    std::size_t end = pos;
    const Rule* rule = roots_[static_cast<std::uint8_t>(text[pos])] == 0 ? nullptr : longest(text, pos, end);
    if (rule == nullptr) {
      ++pos;
      continue;
    }
    std::size_t begin = std::exchange(pos, end);
    if (rule->control && !keep_control) continue;
    if (rule->single_word && touches_word(text, begin, end)) continue;
    if (rule->lstrip) begin = strip_left(text, begin, done);
    if (rule->rstrip) end = strip_right(text, end);
    if (begin < done) continue;  // a neighbour's rstrip has taken the white space this token begins with
    if (done < begin) out.push_back({std::nullopt, done, begin});
    out.push_back({rule->id, begin, end});
    done = end;
    pos = done;
  }
  if (done < text.size()) out.push_back({std::nullopt, done, text.size()});
  return out;
}

}  // namespace wisp::text
