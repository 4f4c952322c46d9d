#include <spdlog/spdlog.h>

#include <algorithm>

#include "services/loader/loader.hpp"

namespace wisp::loader {

using slab::SlotState;
using slab::SlotWord;
using stats::Counter;

/// Derives every table from the slot words. Runs before peers see this epoch; compute may read slots
/// meanwhile.
void LoaderStage::rebuild() {
  const std::uint64_t hints = std::uint64_t{dir_->layers} * dir_->experts;
  for (std::uint64_t i = 0; i < hints; ++i) {
    // A hint that is right stays: nobody who reads it now shall find a hole.
    const std::uint32_t slot = dir_->index()[i].load(std::memory_order_relaxed);
    const std::uint32_t key = ring::expert_key(static_cast<std::uint32_t>(i / dir_->experts),
                                               static_cast<std::uint32_t>(i % dir_->experts));
    const auto word = slot == 0 || slot > dir_->slots
                          ? SlotWord{}
                          : SlotWord::unpack(entry(slot - 1).word.load(std::memory_order_relaxed));
    const bool holds = word.state == SlotState::kReady || word.state == SlotState::kEvicting;
    if (!holds || word.key != key) dir_->index()[i].store(0, std::memory_order_relaxed);
  }
  for (std::uint32_t s = 0; s < dir_->slots; ++s) take_over(s);
  take_staging_slots();
  ctx_.desk()->set(Counter::kSlotsDraining, draining_.size());
}

void LoaderStage::take_over(std::uint32_t slot) {
  const SlotWord word = SlotWord::unpack(entry(slot).word.load(std::memory_order_acquire));
  Slot& s = slots_[slot];
  s.key = word.key;
  s.generation = word.generation;
  if (word.state == SlotState::kFilling) {
    // Whoever filled it is dead, but what it asked the drive for may still arrive.
    s.state = State::kDraining;
    policy_.withdraw(slot);
    draining_.push_back(slot);
    return;
  }
  const bool holds = word.state == SlotState::kReady || word.state == SlotState::kEvicting;
  if (!holds || !key_valid(word.key) || policy_.slot_of(word.key)) {
    s.state = State::kFree;
    if (word.state != SlotState::kFree) store_word(slot, SlotState::kFree);
    return;
  }
  s.state = State::kReady;
  policy_.insert(slot, word.key);
  // EVICTING: its contents were not touched yet, and a reader may hold it.
  if (word.state == SlotState::kEvicting) store_word(slot, SlotState::kReady);
  dir_->index()[ring::layer_of(word.key) * dir_->experts + ring::expert_of(word.key)].store(
      slot + 1, std::memory_order_release);
}

bool LoaderStage::any_drained() const {
  return std::any_of(draining_.begin(), draining_.end(), [this](std::uint32_t s) {
    return ctx_.life().epoch_drained(dir_->entries()[s].fill_epoch.load(std::memory_order_relaxed));
  });
}

/// Frees what no read of a dead loader can reach any more.
bool LoaderStage::free_drained() {
  if (draining_.empty() || !any_drained()) return false;
  const std::size_t before = draining_.size();
  std::erase_if(draining_, [this](std::uint32_t s) {
    if (!ctx_.life().epoch_drained(entry(s).fill_epoch.load(std::memory_order_relaxed))) return false;
    slots_[s].state = State::kFree;
    store_word(s, SlotState::kFree);
    policy_.restore(s);
    return true;
  });
  take_staging_slots();
  ctx_.desk()->set(Counter::kSlotsDraining, draining_.size());
  spdlog::info("{} slots of a dead loader have drained, {} are left", before - draining_.size(),
               draining_.size());
  return true;
}

}  // namespace wisp::loader
