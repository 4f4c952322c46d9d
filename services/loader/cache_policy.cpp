#include "services/loader/cache_policy.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.hpp"
#include "ring/descriptor.hpp"

namespace wisp::loader {

namespace {
// Found by search over two published routing traces (tests/data/traces/README.md), and rounded.
constexpr float kFast = 0.5f;          // columns after which a choice weighs half: the fast count
constexpr float kMiddle = 10.0f;       // the middle one
constexpr float kFastShare = 0.25f;    // of the two
constexpr float kSlow = 64.0f;         // rows after which a slow count weighs half
constexpr float kSlowShare = 0.08f;    // of popularity
constexpr float kFollow = 0.45f;       // how much the vote of rows that resemble this one counts
constexpr float kLayersBack = 0.075f;  // of a round: where the likeness of a layer counts half
constexpr float kFurther = 0.3f;       // what the row after next counts of a vote, and so on
constexpr float kRound = 1.1f;  // rounds that stand before every wait: how little the layer's distance counts
constexpr float kMostLikely = 0.98f;
constexpr float kLeastLikely = 0.00125f;
// Rounds of patience that each expert beyond its layer's share of the slots costs it: keeps one layer's wide
// set from emptying the others.
constexpr float kCrowding = 0.1f;
constexpr std::size_t kSlowTable = 4096;
// One in so many slots is what prompts may take from what decoding uses: a long prompt of another topic costs
// the streams beside it some hits of a hundred, a new topic still has its first experts there.
constexpr std::uint32_t kPassingShare = 4;
// Rounds of wait from which an expert is nobody's: hardly more likely than one that was never seen.
constexpr float kForgotten = 0.5f / kLeastLikely;
}  // namespace

CachePolicy::CachePolicy(const Shape& shape) : shape_(shape) {
  const std::size_t keys = std::size_t{shape.layers} * shape.experts;
  use_.assign(shape.slots, Use::kFree);
  slot_key_.assign(shape.slots, 0);
  passes_.assign(shape.slots, 0);
  // Never fewer than what one row of a layer needs: the drive has to have something to do meanwhile.
  layers_.resize(shape.layers);
  cursor_.resize(shape.layers);
  key_slot_.assign(keys, 0);
  chosen_.assign(keys, Columns{});
  slow_.assign(keys, 0.0f);
  slow_at_.assign(keys, 0.0);
  touched_.assign(keys, 0);
  set_stamp_.assign(keys, 0);
  set_size_.assign(std::size_t{shape.layers} * kColumns, 0);
  free_.reserve(shape.slots);
  for (std::uint32_t s = shape.slots; s > 0; --s) free_.push_back(s - 1);
  for (std::uint32_t age = 0; age < kColumns; ++age) {
    const auto a = static_cast<float>(age);
    age_table_.push_back(kFastShare * (1.0f - std::exp2(-1.0f / kFast)) * std::exp2(-a / kFast) +
                         (1.0f - kFastShare) * (1.0f - std::exp2(-1.0f / kMiddle)) * std::exp2(-a / kMiddle));
  }
  for (std::size_t i = 0; i < kSlowTable; ++i)
    slow_table_.push_back(std::exp2(-static_cast<float>(i) / kSlow));
}

bool CachePolicy::valid(std::uint32_t key) const {
  return ring::layer_of(key) < shape_.layers && ring::expert_of(key) < shape_.experts;
}

std::size_t CachePolicy::place(std::uint32_t key) const {
  return std::size_t{ring::layer_of(key)} * shape_.experts + ring::expert_of(key);
}

std::span<const std::uint8_t> CachePolicy::admit(std::uint32_t layer, std::span<const Member> set,
                                                 bool count_it, Rows rows) {
  WISP_CHECK(layer < shape_.layers);
  // What the last touch brought is scored by what was known at that touch.
  if (shape_.layers != 0 && (layers_[layer_].stale || layers_[layer_].arrived)) score(layer_);
  ++touch_;
  rows_ = shape_.lru ? Rows::kDecode : rows;
  hits_.clear();
  order_.clear();
  for (const bool wanted : {true, false})
    for (const Member& m : set) {
      const std::size_t i = place(m.key);
      if ((key_slot_[i] != 0) == wanted) order_.push_back(m.key);
    }
  for (const Member& m : set) {
    WISP_CHECK(valid(m.key) && ring::layer_of(m.key) == layer);
    const std::size_t i = place(m.key);
    hits_.push_back(key_slot_[i] != 0 ? 1 : 0);
    set_stamp_[i] = touch_;
    touched_[i] = touch_;
    if (count_it && rows == Rows::kDecode && m.rows > 0 && key_slot_[i] != 0)
      set_passing(key_slot_[i] - 1, false);
  }
  served_.assign(order_.size(), 0);
  if (count_it) count(layer, set);
  layer_ = layer;
  return hits_;
}

void CachePolicy::kept(std::uint32_t layer, std::span<const Member> set) {
  for (const Member& m : set) {
    WISP_CHECK(valid(m.key) && ring::layer_of(m.key) == layer);
    if (const std::uint32_t slot = key_slot_[place(m.key)]; slot != 0) set_passing(slot - 1, false);
  }
  count(layer, set);
  layer_ = layer;
}

/// Enters the touch into history and counts, and weighs the columns for its layer.
void CachePolicy::count(std::uint32_t layer, std::span<const Member> touched) {
  counted_.clear();
  for (const Member& m : touched)
    if (m.rows > 0) counted_.push_back(m);
  if (counted_.empty()) return;
  const std::span<const Member> set = counted_;
  if (column_ == 0 || layer <= layer_) ++column_;
  Layer& l = layers_[layer];
  compare(layer, set);
  std::uint64_t choices = 0;
  for (const Member& m : set) choices += m.rows;
  l.rows += std::max(1.0, static_cast<double>(choices) / std::max(1u, shape_.top_k));
  const auto c = static_cast<std::uint32_t>(column_ % kColumns);
  for (const Member& m : set) {
    const std::size_t i = place(m.key);
    chosen_[i][c / 64] |= std::uint64_t{1} << c % 64;
    slow_[i] = slow_count(l, i) + static_cast<float>(m.rows);
    slow_at_[i] = l.rows;
  }
  set_size_[std::size_t{layer} * kColumns + c] =
      static_cast<std::uint16_t>(std::min<std::size_t>(set.size(), 65535));
  weigh_columns();
  l.stale = true;
}

/// Clears the columns that history has come round to since this layer's last touch.
void CachePolicy::forget_columns(std::uint32_t layer) {
  Layer& l = layers_[layer];
  const std::uint64_t passed = std::min<std::uint64_t>(column_ - l.column, kColumns);
  if (passed == 0) return;
  Columns keep;
  keep.fill(~std::uint64_t{0});
  for (std::uint64_t n = 0; n < passed; ++n) {
    const std::uint64_t c = (column_ - n) % kColumns;
    keep[c / 64] &= ~(std::uint64_t{1} << c % 64);
    set_size_[std::size_t{layer} * kColumns + c] = 0;
  }
  Columns* const first = chosen_.data() + std::size_t{layer} * shape_.experts;
  for (std::uint32_t e = 0; e < shape_.experts; ++e)
    for (std::uint32_t w = 0; w < kWords; ++w) first[e][w] &= keep[w];
  l.column = column_;
}

/// How much this touch has in common with the same layer's of each column in history.
void CachePolicy::compare(std::uint32_t layer, std::span<const Member> set) {
  forget_columns(layer);
  common_.fill(0);
  for (const Member& m : set) {
    const Columns& chosen = chosen_[place(m.key)];
    for (std::uint32_t w = 0; w < kWords; ++w)
      for (std::uint64_t bits = chosen[w]; bits != 0; bits &= bits - 1)
        ++common_[w * 64 + static_cast<std::uint32_t>(std::countr_zero(bits))];
  }
  const float fade = std::exp2(-1.0f / (kLayersBack * static_cast<float>(shape_.layers)));
  const std::uint64_t lags = std::min<std::uint64_t>(column_, kColumns);
  const auto mine = static_cast<float>(set.size());
  const std::uint16_t* const sizes = set_size_.data() + std::size_t{layer} * kColumns;
  for (std::uint64_t lag = 1; lag < lags; ++lag) {
    const std::uint64_t c = (column_ - lag) % kColumns;
    const float likeness = static_cast<float>(common_[c]) / std::max(mine, static_cast<float>(sizes[c]));
    likeness_[lag] = likeness_[lag] * fade + (1.0f - fade) * likeness;
  }
}

/// Weights for what was chosen in each column, as seen from the current one: by age, and by how much the
/// column before it resembles this one.
void CachePolicy::weigh_columns() {
  recent_.fill(0);
  follow_.fill(0);
  recent_sum_ = follow_sum_ = 0;
  const std::uint64_t ages = std::min<std::uint64_t>(column_, kColumns);
  for (std::uint64_t age = 0; age < ages; ++age) {
    const std::uint64_t c = (column_ - age) % kColumns;
    recent_[c] = age_table_[age];
    recent_sum_ += age_table_[age];
  }
  float follow = 0;
  for (std::uint64_t lag = ages; lag-- > 1;) {
    const float square = likeness_[lag] * likeness_[lag];
    follow = kFurther * follow + square * square;
    follow_[(column_ + 1 - lag) % kColumns] = follow;
    follow_sum_ += follow;
  }
}

float CachePolicy::slow_count(const Layer& layer, std::size_t i) const {
  const double rows = layer.rows - slow_at_[i];
  return rows < kSlowTable ? slow_[i] * slow_table_[static_cast<std::size_t>(rows)] : 0.0f;
}

/// Rounds over the layers until key number `i` of this layer is used.
float CachePolicy::expected_wait(const Layer& layer, std::size_t i, float slow_weight) const {
  float recent = 0, follow = 0;
  const Columns& chosen = chosen_[i];
  for (std::uint32_t w = 0; w < kWords; ++w)
    for (std::uint64_t bits = chosen[w]; bits != 0; bits &= bits - 1) {
      const std::uint32_t c = w * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
      recent += recent_[c];
      follow += follow_[c];
    }
  const float popular = (recent_sum_ > 0 ? (1.0f - kSlowShare) * recent / recent_sum_ : 0.0f) +
                        slow_weight * slow_count(layer, i);
  const float vote = follow_sum_ > 0 ? follow / follow_sum_ : popular;
  const float p = std::min(kMostLikely, (1.0f - kFollow) * popular + kFollow * vote + kLeastLikely);
  return 1.0f / p;
}

void CachePolicy::score(std::uint32_t layer) {
  Layer& l = layers_[layer];
  l.order.clear();
  l.head = 0;
  l.stale = l.arrived = false;
  const float faded = std::exp2(-static_cast<float>(l.rows) / kSlow);
  const float slow_rows = l.seeded_rows * faded + (1.0f - faded) / (1.0f - slow_table_[1]);
  const float slow_weight = slow_rows > 0 ? kSlowShare / slow_rows : 0.0f;
  const std::size_t first = std::size_t{layer} * shape_.experts;
  for (std::uint32_t e = 0; e < shape_.experts; ++e) {
    const std::size_t i = first + e;
    if (key_slot_[i] == 0) continue;
    l.order.push_back({shape_.lru ? 0.0f : expected_wait(l, i, slow_weight), touched_[i], key_slot_[i] - 1,
                       ring::expert_key(layer, e)});
  }
  std::sort(l.order.begin(), l.order.end(), [](const Ranked& a, const Ranked& b) {
    if (a.wait != b.wait) return a.wait > b.wait;
    if (a.touched != b.touched) return a.touched < b.touched;
    return a.key < b.key;
  });
}

std::uint32_t CachePolicy::most_passing() const {
  const std::uint32_t there = shape_.slots - withdrawn_;
  return std::max(there / kPassingShare, std::min(there, 2 * shape_.top_k));
}

std::optional<CachePolicy::Choice> CachePolicy::choose(const Look& look) {
  if (auto c = choose_free(look)) return c;
  if (rows_ == Rows::kPrompt && passing_ >= most_passing()) {
    waits_ = false;
    if (auto c = choose_outside(look, Among::kPassing)) return c;
    if (auto c = choose_served(look, Among::kPassing)) return c;
    if (waits_) return std::nullopt;  // else none of them can ever be had
  }
  if (auto c = choose_outside(look, Among::kAll)) return c;
  return choose_served(look, Among::kAll);
}

CachePolicy::Verdict CachePolicy::ask(const Look& look, std::uint32_t slot) {
  const Verdict v = look ? look(slot) : Verdict::kTake;
  waits_ = waits_ || v == Verdict::kWait;
  return v;
}

void CachePolicy::set_passing(std::uint32_t slot, bool passing) {
  if ((passes_[slot] != 0) == passing) return;
  passes_[slot] = passing ? 1 : 0;
  Layer& l = layers_[ring::layer_of(slot_key_[slot])];
  passing ? ++passing_ : --passing_;
  passing ? ++l.passing : --l.passing;
}

std::optional<CachePolicy::Choice> CachePolicy::choose_free(const Look& look) {
  while (!free_.empty() && use_[free_.back()] != Use::kFree) free_.pop_back();
  for (auto it = free_.rbegin(); it != free_.rend(); ++it)
    if (use_[*it] == Use::kFree && (!look || look(*it) == Verdict::kTake)) return Choice{*it, false, 0};
  return std::nullopt;
}

/// The first place from `at` on in the layer's order that holds a candidate.
std::uint32_t CachePolicy::next_outside(Layer& l, std::uint32_t at, Among among) const {
  for (; at < l.order.size(); ++at) {
    const Ranked& r = l.order[at];
    const bool may_go = among == Among::kAll || r.wait >= kForgotten || passes_[r.slot] != 0;
    if (may_go && holds(r) && !in_set(r.key)) return at;
    if (!may_go && l.passing == 0) break;  // shorter waits follow
  }
  return static_cast<std::uint32_t>(l.order.size());
}

std::optional<CachePolicy::Choice> CachePolicy::choose_outside(const Look& look, Among among) {
  for (std::uint32_t n = 0; n < shape_.layers; ++n) {
    Layer& l = layers_[n];
    if (l.stale) score(n);
    while (l.head < l.order.size() && !holds(l.order[l.head])) ++l.head;
    cursor_[n] = l.head;
  }
  const float share = static_cast<float>(shape_.slots - withdrawn_) / static_cast<float>(shape_.layers);
  for (;;) {
    const Ranked* best = nullptr;
    std::uint32_t best_layer = 0;
    float best_wait = 0;
    for (std::uint32_t n = 0; n < shape_.layers; ++n) {
      Layer& l = layers_[n];
      std::uint32_t& at = cursor_[n];
      at = next_outside(l, at, among);
      if (at == l.order.size()) continue;
      const Ranked& r = l.order[at];
      // Layers from here to the expert's own, then whole rounds.
      const std::uint32_t ahead = n > layer_ ? n - layer_ : n + shape_.layers - layer_;
      const float wait =
          shape_.lru ? 0.0f
                     : (static_cast<float>(ahead) / static_cast<float>(shape_.layers) + kRound) * r.wait +
                           kCrowding * std::max(0.0f, static_cast<float>(l.residents) - share);
      if (best != nullptr && (wait < best_wait || (wait == best_wait && r.touched >= best->touched)))
        continue;
      best = &r;
      best_layer = n;
      best_wait = wait;
    }
    if (best == nullptr) return std::nullopt;
    if (ask(look, best->slot) == Verdict::kTake) return Choice{best->slot, true, best->key};
    ++cursor_[best_layer];
  }
}

std::optional<CachePolicy::Choice> CachePolicy::choose_served(const Look& look, Among among) {
  for (std::size_t n = 0; n < order_.size(); ++n) {
    const std::uint32_t slot = key_slot_[place(order_[n])];
    if (slot == 0 || (among == Among::kPassing && passes_[slot - 1] == 0)) continue;
    waits_ = waits_ || served_[n] == 0;
    const Verdict v = served_[n] == 0 ? Verdict::kWait : ask(look, slot - 1);
    if (v == Verdict::kTake) return Choice{slot - 1, true, order_[n]};
    if (v == Verdict::kWait) return std::nullopt;
  }
  return std::nullopt;
}

void CachePolicy::insert(std::uint32_t slot, std::uint32_t key) {
  WISP_CHECK(slot < shape_.slots && valid(key));
  WISP_CHECK(use_[slot] == Use::kFree && key_slot_[place(key)] == 0);
  use_[slot] = Use::kResident;
  slot_key_[slot] = key;
  key_slot_[place(key)] = slot + 1;
  ++residents_;
  Layer& l = layers_[ring::layer_of(key)];
  ++l.residents;
  if (in_set(key) && rows_ == Rows::kPrompt) set_passing(slot, true);
  (in_set(key) ? l.arrived : l.stale) = true;
}

void CachePolicy::remove(std::uint32_t slot) {
  WISP_CHECK(slot < shape_.slots);
  if (use_[slot] != Use::kResident) return;
  set_passing(slot, false);
  key_slot_[place(slot_key_[slot])] = 0;
  use_[slot] = Use::kFree;
  free_.push_back(slot);
  --residents_;
  --layers_[ring::layer_of(slot_key_[slot])].residents;
}

void CachePolicy::serve(std::uint32_t key) {
  if (!valid(key) || !in_set(key)) return;
  for (std::size_t n = 0; n < order_.size(); ++n)
    if (order_[n] == key) served_[n] = 1;
}

void CachePolicy::withdraw(std::uint32_t slot) {
  WISP_CHECK(slot < shape_.slots);
  if (use_[slot] == Use::kWithdrawn) return;
  remove(slot);
  use_[slot] = Use::kWithdrawn;
  ++withdrawn_;
}

void CachePolicy::restore(std::uint32_t slot) {
  WISP_CHECK(slot < shape_.slots);
  if (use_[slot] != Use::kWithdrawn) return;
  use_[slot] = Use::kFree;
  free_.push_back(slot);
  --withdrawn_;
}

void CachePolicy::seed(std::uint32_t key, float share, float rows) {
  WISP_CHECK(valid(key));
  Layer& l = layers_[ring::layer_of(key)];
  slow_[place(key)] = share * rows;
  l.seeded_rows = rows;
  l.stale = true;
}

std::optional<std::uint32_t> CachePolicy::slot_of(std::uint32_t key) const {
  if (!valid(key)) return std::nullopt;
  const std::uint32_t slot = key_slot_[place(key)];
  if (slot == 0) return std::nullopt;
  return slot - 1;
}

}  // namespace wisp::loader
