#include "services/loader/cache_policy.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "ring/descriptor.hpp"

namespace wisp::loader {

namespace {
// Rows after which a count weighs half. Traces of real models change by less than a point from 12 to 24.
constexpr double kHalfLife = 16.0;
// A row chooses what the last rows chose more often than plain popularity says; the surplus fades within two
// rows.
constexpr double kRecencyWeight = 0.25;
constexpr double kRecency = 0.38;
constexpr double kRecencyFade = 1.2;
constexpr double kMostLikely = 0.98;
constexpr double kLeastLikely = 1e-4;
// Rounds of patience that each expert beyond its layer's share of the slots costs it: keeps one layer's wide
// set from emptying the others.
constexpr double kCrowding = 2.0;
constexpr std::size_t kDecayTable = 1024;
constexpr std::size_t kRankStep = 64;
}  // namespace

CachePolicy::CachePolicy(const Shape& shape) : shape_(shape) {
  const std::size_t keys = std::size_t{shape.layers} * shape.experts;
  use_.assign(shape.slots, Use::kFree);
  slot_key_.assign(shape.slots, 0);
  key_slot_.assign(keys, 0);
  frequency_.assign(keys, 0.0f);
  counted_at_.assign(keys, 0);
  touched_.assign(keys, 0);
  set_stamp_.assign(keys, 0);
  free_.reserve(shape.slots);
  for (std::uint32_t s = shape.slots; s > 0; --s) free_.push_back(s - 1);
  for (std::size_t i = 0; i < kDecayTable; ++i)
    decay_table_.push_back(static_cast<float>(std::exp2(-static_cast<double>(i) / kHalfLife)));
}

bool CachePolicy::valid(std::uint32_t key) const {
  return ring::layer_of(key) < shape_.layers && ring::expert_of(key) < shape_.experts;
}

std::size_t CachePolicy::place(std::uint32_t key) const {
  return std::size_t{ring::layer_of(key)} * shape_.experts + ring::expert_of(key);
}

double CachePolicy::decay(std::uint64_t rows) const {
  return rows < kDecayTable ? static_cast<double>(decay_table_[rows]) : 0.0;
}

std::vector<bool> CachePolicy::admit(std::uint64_t step, std::uint32_t layer, std::span<const Member> set,
                                     bool count) {
  std::uint64_t choices = 0;
  for (const Member& m : set) choices += m.rows;
  if (count && step != step_) {
    step_ = step;
    rows_ += std::max<std::uint64_t>(1, choices / std::max(1u, shape_.top_k));
  }
  ++touch_;
  layer_ = layer;
  served_.clear();
  ranking_valid_ = false;
  std::vector<bool> hits;
  hits.reserve(set.size());
  for (const Member& m : set) {
    WISP_CHECK(valid(m.key));
    const std::size_t i = place(m.key);
    hits.push_back(key_slot_[i] != 0);
    set_stamp_[i] = touch_;
    touched_[i] = touch_;
    if (!count) continue;
    frequency_[i] =
        frequency_[i] * static_cast<float>(decay(rows_ - counted_at_[i])) + static_cast<float>(m.rows);
    counted_at_[i] = rows_;
  }
  return hits;
}

double CachePolicy::expected_wait(std::uint32_t key) const {
  const std::size_t i = place(key);
  const std::uint64_t age = rows_ - counted_at_[i];
  const double popular = static_cast<double>(frequency_[i]) * decay(age) * (1.0 - decay(1));
  const double recent =
      touched_[i] == 0 ? 0.0 : kRecency * std::exp(-static_cast<double>(age) / kRecencyFade);
  const double p =
      std::min(kMostLikely, (1.0 - kRecencyWeight) * popular + kRecencyWeight * recent + kLeastLikely);
  // Layers from here to the expert's own, then whole rounds until a row chooses it.
  const std::uint32_t ahead = (ring::layer_of(key) + shape_.layers - layer_) % shape_.layers;
  const double next_round = ahead == 0 ? shape_.layers : ahead;
  return next_round + shape_.layers * (1.0 - p) / p;
}

void CachePolicy::rank() {
  ranking_.clear();
  ranked_ = 0;
  ranking_valid_ = true;
  // With less than half of a row's experts in memory every layer is over its share, and popularity alone
  // decides.
  const bool shares = std::uint64_t{shape_.slots} * 2 >= std::uint64_t{shape_.layers} * shape_.top_k;
  const double share = static_cast<double>(shape_.slots) / shape_.layers;
  layer_residents_.assign(shape_.layers, 0);
  for (std::uint32_t s = 0; s < shape_.slots; ++s)
    if (use_[s] == Use::kResident) ++layer_residents_[ring::layer_of(slot_key_[s])];
  for (std::uint32_t s = 0; s < shape_.slots; ++s) {
    if (use_[s] != Use::kResident || in_set(slot_key_[s])) continue;
    const std::uint32_t key = slot_key_[s];
    const double crowd = shares ? std::max(0.0, layer_residents_[ring::layer_of(key)] - share) : 0.0;
    ranking_.push_back(
        {expected_wait(key) + kCrowding * shape_.layers * crowd, touched_[place(key)], s, key});
  }
}

bool CachePolicy::extend_ranking() {
  if (ranked_ == ranking_.size()) return false;
  const std::size_t end = std::min(ranking_.size(), ranked_ + kRankStep);
  const auto at = [&](std::size_t i) { return ranking_.begin() + static_cast<std::ptrdiff_t>(i); };
  std::partial_sort(at(ranked_), at(end), ranking_.end(), [](const Ranked& a, const Ranked& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.touched != b.touched) return a.touched < b.touched;
    return a.slot < b.slot;
  });
  ranked_ = end;
  return true;
}

std::optional<CachePolicy::Choice> CachePolicy::choose(const Excluded& excluded) {
  if (auto c = choose_free(excluded)) return c;
  if (auto c = choose_outside(excluded)) return c;
  return choose_served(excluded);
}

std::optional<CachePolicy::Choice> CachePolicy::choose_free(const Excluded& excluded) {
  std::erase_if(free_, [&](std::uint32_t s) { return use_[s] != Use::kFree; });
  for (auto it = free_.rbegin(); it != free_.rend(); ++it)
    if (!excluded || !excluded(*it)) return Choice{*it, false, 0};
  return std::nullopt;
}

std::optional<CachePolicy::Choice> CachePolicy::choose_outside(const Excluded& excluded) {
  if (!ranking_valid_) rank();
  for (std::size_t i = 0; i < ranked_ || extend_ranking(); ++i) {
    const Ranked& r = ranking_[i];
    if (use_[r.slot] != Use::kResident || slot_key_[r.slot] != r.key) continue;  // gone since it was ranked
    if (!excluded || !excluded(r.slot)) return Choice{r.slot, true, r.key};
  }
  return std::nullopt;
}

std::optional<CachePolicy::Choice> CachePolicy::choose_served(const Excluded& excluded) const {
  for (const std::uint32_t key : served_) {
    const std::uint32_t slot = key_slot_[place(key)];
    if (slot != 0 && (!excluded || !excluded(slot - 1))) return Choice{slot - 1, true, key};
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
  if (!in_set(key)) ranking_valid_ = false;
}

void CachePolicy::remove(std::uint32_t slot) {
  WISP_CHECK(slot < shape_.slots);
  if (use_[slot] != Use::kResident) return;
  std::erase(served_, slot_key_[slot]);
  key_slot_[place(slot_key_[slot])] = 0;
  use_[slot] = Use::kFree;
  free_.push_back(slot);
  --residents_;
}

void CachePolicy::serve(std::uint32_t key) {
  if (!valid(key) || !in_set(key)) return;
  if (std::find(served_.begin(), served_.end(), key) == served_.end()) served_.push_back(key);
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

std::optional<std::uint32_t> CachePolicy::slot_of(std::uint32_t key) const {
  if (!valid(key)) return std::nullopt;
  const std::uint32_t slot = key_slot_[place(key)];
  if (slot == 0) return std::nullopt;
  return slot - 1;
}

}  // namespace wisp::loader
