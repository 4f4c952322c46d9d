#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>

#include "services/loader/loader.hpp"
#include "services/loader/loader_stage.hpp"

namespace wisp::loader {

namespace {
// Rows that the seeds of the policy stand for.
constexpr float kSeedRows = 16;
// Rows of a layer after which the file is written again, when nothing else is to be done.
constexpr std::uint64_t kSaveRows = 16;
// Extents of the warm-up in flight: so few that a first touch waits for next to nothing.
constexpr std::size_t kWarmReads = 2;
}  // namespace

/// Reads what earlier runs learned, tells the policy, and lines up the most wanted experts for idle time.
/// Nothing here can fail: without a file, or with a bad one, the cache begins as it always did.
void LoaderStage::begin_learning() {
  const char* const file = std::getenv(kLearnedVariable);
  if (file == nullptr || *file == '\0' || policy_.shape().slots == 0) return;
  learned_file_.emplace(file, manifest_.model_hash, dir_->layers, dir_->experts);
  learned_.emplace(dir_->layers, dir_->experts);
  auto known = LearnedCounts::load(learned_file_->path(), manifest_.model_hash, dir_->layers, dir_->experts);
  if (!known.ok()) {
    if (known.error().code != ErrorCode::kNotFound)
      spdlog::warn("what the cache had learned is not used: {}", known.error().text);
    return;
  }
  for (const std::uint32_t key : known->most_wanted()) {
    if (!key_valid(key)) continue;
    policy_.seed(key, known->share(ring::layer_of(key), ring::expert_of(key)), kSeedRows);
    if (warm_.size() < policy_.shape().slots) warm_.push_back(key);
  }
  std::reverse(warm_.begin(), warm_.end());
  spdlog::info("the cache knows {} experts from earlier runs", warm_.size());
}

/// Counts the touch at hand.
void LoaderStage::learn(std::uint32_t layer) {
  if (!learned_) return;
  warm_.clear();  // demand has begun: it knows better
  std::uint64_t choices = 0;
  for (const ring::TouchMember& m : members_) {
    learned_->add(layer, m.expert, m.rows);
    choices += m.rows;
  }
  const std::uint64_t rows = std::max<std::uint64_t>(1, choices / policy_.shape().top_k);
  learned_->pass(layer, static_cast<double>(rows));
  if (layer + 1 == dir_->layers) learned_rows_ += rows;
}

/// Brings one more of the most wanted experts into a free slot, while the dense part is in memory and nobody
/// asks for anything.
bool LoaderStage::warm_up() {
  if (warm_.empty() || dense_ || !wants_.empty() || !input_.empty()) return false;
  if (queue_->in_flight() >= kWarmReads || !queue_->has_room() || queue_->has_done()) return false;
  const std::uint32_t key = warm_.back();
  warm_.pop_back();
  if (policy_.slot_of(key)) return true;
  const auto free = policy_.choose();
  if (!free || free->evicts) {
    warm_.clear();
    return false;
  }
  if (bring(free->slot)) begin_fill(free->slot, key, false);
  return true;
}

/// Adds what was counted since the last time to the file: other engines add to it too, and `wisp cache reset`
/// may have removed it. A failure is said once, and ends the learning of this life.
void LoaderStage::save_learned() {
  if (!learned_ || learned_rows_ < kSaveRows || !wants_.empty()) return;
  learned_rows_ = 0;
  const Status s = learned_file_->add(*learned_);
  if (!s.ok() && s.error().code == ErrorCode::kUnavailable) return;
  learned_->clear();
  if (s.ok()) return;
  spdlog::warn("what the cache learns is not kept: {}", s.error().text);
  learned_.reset();
}

}  // namespace wisp::loader
