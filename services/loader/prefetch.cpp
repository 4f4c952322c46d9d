#include <algorithm>

#include "services/loader/loader.hpp"

/// Guesses of compute, read while the drive has nothing better to do. They go into a few slots of their own,
/// which the policy does not know: a guess evicts nothing, and what the cache holds and hits is the same with
/// and without them. When a touch asks for what lies there, or is on its way there, that slot and the victim
/// that the policy names change places.
namespace wisp::loader {

using slab::SlotState;
using slab::SlotWord;
using stats::Counter;

/// Only free slots are taken: at the start there are some, and after the death of a loader those that it
/// staged into are freed sooner or later.
void LoaderStage::take_staging_slots() {
  while (staging_.size() < ctx_.plan().prefetch_slots) {
    const auto free = policy_.choose();
    if (!free || free->evicts) return;
    policy_.withdraw(free->slot);
    slots_[free->slot].staging = true;
    staging_.push_back(free->slot);
  }
}

bool LoaderStage::holds_guess(std::uint32_t slot) const {
  return slots_[slot].state == State::kFilling || slots_[slot].state == State::kStaged;
}

std::optional<std::uint32_t> LoaderStage::staged(std::uint32_t key) const {
  for (const std::uint32_t s : staging_)
    if (holds_guess(s) && slots_[s].key == key && !slots_[s].dropped) return s;
  return std::nullopt;
}

std::uint32_t LoaderStage::read_ahead() const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(staging_, [&](std::uint32_t s) { return slots_[s].state == State::kStaged; }));
}

/// Replaces what was guessed before.
void LoaderStage::on_guess(const ring::Descriptor& d) {
  if (staging_.empty()) return;
  take_members(d, ring::layer_of(d.key));
  guesses_.clear();
  for (const CachePolicy::Member& m : set_)
    if (!policy_.slot_of(m.key) && !staged(m.key)) guesses_.push_back(m.key);
  std::reverse(guesses_.begin(), guesses_.end());
}

/// Lines one guess up behind all demand.
bool LoaderStage::prefetch() {
  if (guesses_.empty() || dense_ || !wants_.empty() || !input_.empty()) return false;
  const std::uint32_t key = guesses_.back();
  // What an earlier guess left is given up for this one, but nothing that is still being read.
  const auto place = std::find_if(staging_.begin(), staging_.end(), [&](std::uint32_t s) {
    return slots_[s].state == State::kFree || slots_[s].state == State::kStaged;
  });
  if (place == staging_.end() || !bring(*place)) {
    guesses_.clear();
    return false;
  }
  guesses_.pop_back();
  if (policy_.slot_of(key) || staged(key)) return true;
  const std::uint32_t slot = *place;
  if (slots_[slot].state == State::kStaged) ctx_.desk()->add(Counter::kPrefetchWastedBytes, dir_->stride);
  // The next guess finds the other slots first.
  std::rotate(place, place + 1, staging_.end());
  read_into(slot, key, Urgency::kIdle);
  return true;
}

/// A touch has come: what it does not ask for is not begun any more.
void LoaderStage::settle_guesses() {
  if (staging_.empty()) return;
  guesses_.clear();
  bool any = false;
  for (const std::uint32_t s : staging_) {
    if (slots_[s].state != State::kFilling || slots_[s].dropped) continue;
    if (open_want(slots_[s].key) != nullptr) {
      queue_->promote(s);
    } else {
      slots_[s].dropped = any = true;
    }
  }
  if (any) queue_->cancel_idle();
}

/// The staged slot becomes an ordinary one, and the victim, empty by now, takes its place.
void LoaderStage::swap_in(std::uint32_t slot, std::uint32_t victim, bool needed) {
  Slot& s = slots_[slot];
  policy_.withdraw(victim);
  policy_.restore(slot);
  policy_.insert(slot, s.key);
  s.staging = false;
  s.needed = needed;
  Slot& v = slots_[victim];
  v.state = State::kFree;
  v.staging = true;
  store_word(victim, SlotState::kFree);
  *std::find(staging_.begin(), staging_.end(), slot) = victim;
  if (s.state == State::kFilling) {
    queue_->promote(slot);
    ctx_.desk()->add(Counter::kPrefetchLateBytes, dir_->stride);
    return;
  }
  ctx_.desk()->add(Counter::kPrefetchUsefulBytes, dir_->stride);
  ctx_.desk()->add(Counter::kReads);
  ctx_.desk()->add(Counter::kExpertBytesRead, dir_->stride);
  make_ready(slot);
}

/// All reads of a staged slot are over. A failure is nobody's concern: whoever needs the expert asks again.
void LoaderStage::finish_staging(std::uint32_t slot, std::optional<Error> error, std::uint64_t arrived) {
  Slot& s = slots_[slot];
  if (!error) error = check_expert(slot);
  s.dropped = false;
  if (!error) {
    s.state = State::kStaged;
    return;
  }
  ctx_.desk()->add(Counter::kPrefetchWastedBytes, arrived);
  s.state = State::kFree;
  store_word(slot, SlotState::kFree);
}

}  // namespace wisp::loader
