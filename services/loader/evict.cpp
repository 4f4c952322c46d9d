#include <spdlog/spdlog.h>

#include <algorithm>

#include "service/crash_point.hpp"
#include "services/loader/loader.hpp"

namespace wisp::loader {

using service::CrashPoint;
using shm::StageId;
using slab::SlotState;
using stats::Counter;

/// A slot to fill, its former expert evicted; or nothing, and blocked_ says what has to end first. A leased
/// slot is taken only if compute holds every other candidate too, and then waited for; a lease of another
/// reader never.
std::optional<std::uint32_t> LoaderStage::take_slot() {
  using Verdict = CachePolicy::Verdict;
  /// Takes slots in the hands of `reader`, and of no other.
  const auto held_by = [this](Reader reader) {
    return [this, reader](std::uint32_t s) {
      const bool busy = slots_[s].state == State::kFilling || slots_[s].state == State::kDraining ||
                        slots_[s].answer_pending;
      const Reader now = busy ? Reader::kNone : reader_of(s);
      if (now == Reader::kOther) return Verdict::kNever;
      return !busy && now == reader ? Verdict::kTake : Verdict::kWait;
    };
  };
  for (;;) {
    look_at_answers();
    const auto idle = policy_.choose(held_by(Reader::kNone));
    if (idle) {
      // An eviction fails if a reader was faster. The next look sees its lease.
      if (idle->evicts && !evict(idle->slot)) continue;
      blocked_ = Blocked::kNo;
      end_lease_wait();
      return idle->slot;
    }
    const auto leased = policy_.choose(held_by(Reader::kCompute));
    if (!leased) break;
    if (wait_for_lease(leased->slot)) return std::nullopt;
  }
  end_lease_wait();
  const bool waits_here = !queue_->idle() || !answers_.empty();
  blocked_ = waits_here ? Blocked::kByFills : !draining_.empty() ? Blocked::kByDraining : Blocked::kByOthers;
  return std::nullopt;
}

/// Sees to it that memory backs `slot` before the drive writes there. False: it does not suffice.
bool LoaderStage::bring(std::uint32_t slot) {
  const std::uint64_t at = slot * dir_->stride;
  const Status s = memory_->ensure(at, dir_->stride);
  if (!s.ok()) lose_slots(at, s.error());
  return s.ok();
}

/// Memory has run out behind byte `there` of the slab: no slot is free there any more.
void LoaderStage::lose_slots(std::uint64_t there, const Error& why) {
  for (std::uint32_t s = 0; s < dir_->slots; ++s) {
    if ((s + std::uint64_t{1}) * dir_->stride <= there || slots_[s].state != State::kFree) continue;
    slots_[s].state = State::kAbsent;
    policy_.withdraw(s);
  }
  const auto left = static_cast<std::uint32_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const Slot& s) { return s.state != State::kAbsent && !s.staging; }));
  if (left < std::min<std::uint32_t>(2, manifest_.spec.expert_count()))
    ctx_.give_up(Error(why).within("slab"));
  if (trace_) trace_->restart("memory does not suffice for all slots");
  spdlog::warn("slab: {}; this run goes on with {} of {} slots", why.text, left, ctx_.plan().cache_slots());
}

/// The evictor's half of the lease protocol: EVICTING first, then the look at the leases. A reader writes its
/// lease first and then looks at the word, so at least one of the two sees the other. False: leased, and
/// READY as before.
bool LoaderStage::evict(std::uint32_t slot) {
  store_word(slot, SlotState::kEvicting);
  service::crash_point(CrashPoint::kEvictingStored);
  look_at_answers();
  if (reader_of(slot) != Reader::kNone) {
    store_word(slot, SlotState::kReady);
    return false;
  }
  const std::uint32_t key = slots_[slot].key;
  auto& hint = dir_->index()[ring::layer_of(key) * dir_->experts + ring::expert_of(key)];
  if (hint.load(std::memory_order_relaxed) == slot + 1) hint.store(0, std::memory_order_relaxed);
  policy_.remove(slot);
  slots_[slot].state = State::kFree;  // the word stays EVICTING until it says FILLING
  ctx_.desk()->add(Counter::kEvictions);
  return true;
}

/// Notes which slots are named by answers that compute has not taken yet. It writes a lease before it
/// advances its head: so read the head here, before the lease row, and a slot is always seen as one or the
/// other.
void LoaderStage::look_at_answers() {
  for (const std::uint32_t s : unread_slots_) unread_generation_[s] = 0;
  unread_slots_.clear();
  const std::uint64_t tail = output_.tail();
  for (std::uint64_t n = output_.peer_head(); n < tail; ++n) {
    const ring::Descriptor& d = output_.at(n);
    if (d.kind != ring::Kind::kSlotReady || d.slot >= dir_->slots) continue;
    unread_generation_[d.slot] = d.gen;
    unread_slots_.push_back(d.slot);
  }
}

bool LoaderStage::answer_unread(std::uint32_t slot) const {
  return unread_generation_[slot] != 0 && unread_generation_[slot] == slots_[slot].generation;
}

bool LoaderStage::leased_in(StageId stage, std::uint32_t slot) const {
  const shm::Desk* desk = ctx_.peer(stage);
  if (desk == nullptr || desk->extra_size < dir_->slots * sizeof(std::uint64_t)) return false;
  const auto* row = shm::extra_of<slab::LeaseRow>(desk);
  return row->generation[slot].load(std::memory_order_seq_cst) == slots_[slot].generation;
}

/// Who holds `slot`. Leases and unread answers of a dead epoch count for nothing.
LoaderStage::Reader LoaderStage::reader_of(std::uint32_t slot) const {
  if (slots_[slot].state != State::kReady) return Reader::kNone;
  const auto lives = [this](StageId stage) {
    const shm::Desk* desk = ctx_.peer(stage);
    if (desk == nullptr) return false;
    const std::uint32_t epoch = desk->attached_epoch.load(std::memory_order_seq_cst);
    return epoch != 0 && !ctx_.life().epoch_dead(stage, epoch);
  };
  if (lives(StageId::kSpeculator) && leased_in(StageId::kSpeculator, slot)) return Reader::kOther;
  if (!lives(StageId::kCompute)) return Reader::kNone;
  return answer_unread(slot) || leased_in(StageId::kCompute, slot) ? Reader::kCompute : Reader::kNone;
}

/// Names the slot for compute to ring about, then looks once more: a lease that ended before the word was
/// there rings nobody. True if it is still held.
bool LoaderStage::wait_for_lease(std::uint32_t slot) {
  board()->waits_for_lease.store(std::uint64_t{slot} + 1, std::memory_order_seq_cst);
  look_at_answers();
  if (reader_of(slot) != Reader::kCompute) return false;
  if (lease_wait_ != slot) ctx_.desk()->add(Counter::kLeaseWaits);
  lease_wait_ = slot;
  blocked_ = Blocked::kByLease;
  return true;
}

void LoaderStage::end_lease_wait() {
  lease_wait_.reset();
  if (board()->waits_for_lease.load(std::memory_order_relaxed) != 0)
    board()->waits_for_lease.store(0, std::memory_order_seq_cst);
}

}  // namespace wisp::loader
