#include "services/speculator/suffix_automaton.hpp"

#include <algorithm>
#include <bit>

namespace wisp::speculator {

namespace {
constexpr std::size_t kSmallestTable = 64;
}  // namespace

void SuffixAutomaton::clear() {
  states_.clear();
  edges_.clear();
  std::fill(table_.begin(), table_.end(), 0);
  if (table_.empty()) table_.assign(kSmallestTable, 0);
  size_ = 0;
  match_ = {};
  last_ = add_state(0, kNone, 0);
}

void SuffixAutomaton::begin(std::uint32_t most) {
  // 2 n states and 3 n edges at the most.
  states_.reserve(2 * std::size_t{most} + 1);
  edges_.reserve(3 * std::size_t{most});
  clear();
}

void SuffixAutomaton::release() {
  states_ = {};
  edges_ = {};
  table_ = {};
  clear();
}

std::uint32_t SuffixAutomaton::add_state(std::uint32_t length, std::uint32_t link, std::uint32_t seen) {
  states_.push_back({length, link, seen, kNone});
  return static_cast<std::uint32_t>(states_.size() - 1);
}

std::size_t SuffixAutomaton::bucket(std::uint32_t state, std::uint32_t token) const {
  const std::uint64_t h = (std::uint64_t{state} << 32 | token) * 0x9e3779b97f4a7c15ULL;
  return static_cast<std::size_t>(h >> (64 - std::countr_zero(table_.size())));
}

std::uint32_t SuffixAutomaton::find(std::uint32_t state, std::uint32_t token) const {
  for (std::size_t b = bucket(state, token);; b = (b + 1) & (table_.size() - 1)) {
    if (table_[b] == 0) return kNone;
    const Edge& e = edges_[table_[b] - 1];
    if (e.state == state && e.token == token) return table_[b] - 1;
  }
}

void SuffixAutomaton::grow() {
  table_.assign(2 * table_.size(), 0);
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    std::size_t b = bucket(edges_[i].state, edges_[i].token);
    while (table_[b] != 0) b = (b + 1) & (table_.size() - 1);
    table_[b] = static_cast<std::uint32_t>(i + 1);
  }
}

void SuffixAutomaton::add_edge(std::uint32_t state, std::uint32_t token, std::uint32_t to) {
  if ((edges_.size() + 1) * 3 > table_.size() * 2) grow();
  edges_.push_back({state, token, to, states_[state].edges});
  states_[state].edges = static_cast<std::uint32_t>(edges_.size() - 1);
  std::size_t b = bucket(state, token);
  while (table_[b] != 0) b = (b + 1) & (table_.size() - 1);
  table_[b] = static_cast<std::uint32_t>(edges_.size());
}

void SuffixAutomaton::append(std::uint32_t token) {
  const std::uint32_t at = size_++;
  const std::uint32_t now = add_state(states_[last_].length + 1, 0, at);
  std::uint32_t p = last_, edge = kNone;
  for (; p != kNone && (edge = find(p, token)) == kNone; p = states_[p].link) add_edge(p, token, now);
  if (p != kNone) {
    const std::uint32_t q = edges_[edge].to;
    if (states_[p].length + 1 == states_[q].length) {
      states_[now].link = q;
    } else {
      // The part of q that ends here too becomes a state of its own.
      const std::uint32_t part = add_state(states_[p].length + 1, states_[q].link, states_[q].seen);
      for (std::uint32_t e = states_[q].edges; e != kNone; e = edges_[e].next)
        add_edge(part, edges_[e].token, edges_[e].to);
      for (; p != kNone && (edge = find(p, token)) != kNone && edges_[edge].to == q; p = states_[p].link)
        edges_[edge].to = part;
      states_[q].link = states_[now].link = part;
    }
  }
  last_ = now;
  State& longest = states_[states_[now].link];
  match_ = longest.length == 0 ? Match{} : Match{longest.length, longest.seen + 1};
  longest.seen = at;
}

}  // namespace wisp::speculator
