#include "services/compute/expert_client.hpp"

#include <algorithm>

#include "stats/ticks.hpp"

namespace wisp::compute {

using shm::StageId;
using shm::WaitFor;
using stats::Counter;

ExpertClient::ExpertClient(service::StageContext& ctx)
    : ctx_(ctx),
      dir_(ctx.at().slab_dir),
      slab_(ctx.at().slab),
      row_(shm::extra_of<slab::LeaseRow>(ctx.desk())),
      loader_board_(shm::extra_of<shm::LoaderBoard>(ctx.peer(StageId::kLoader))),
      to_loader_(ctx.producer(shm::EdgeId::kComputeLoader)),
      from_loader_(ctx.consumer(shm::EdgeId::kLoaderCompute)),
      traced_(!ctx.plan().options.trace.empty()),
      guesses_(ctx.plan().prefetch_slots > 0) {
  guess_.reserve(dir_->experts);
  set_.reserve(dir_->experts);
  leased_.reserve(dir_->experts);
  batch_.reserve(dir_->experts);
  // Leases of an earlier life protect nothing now. They end before this epoch is announced in the desk.
  for (std::uint32_t s = 0; s < dir_->slots; ++s) row_->generation[s].store(0, std::memory_order_seq_cst);
}

std::uint32_t ExpertClient::loader_epoch() const {
  return ctx_.peer(StageId::kLoader)->attached_epoch.load(std::memory_order_acquire);
}

bool ExpertClient::any_open() const {
  return std::any_of(set_.begin(), set_.end(), [](const ring::TouchMember& m) { return m.needs != 0; });
}

bool ExpertClient::visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use,
                         Fail fail, Cancelled cancelled) {
  set_.assign(set.begin(), set.end());
  // Read before the touch is sent: a loader that attaches after this is seen as new, and told again.
  std::uint32_t told = loader_epoch();
  lease_ready(layer);
  send_touch(layer, decode, false);
  use_and_release(use);
  while (any_open()) {
    if (cancelled()) return false;
    if (take_answers(layer, fail)) {
      use_and_release(use);
      continue;
    }
    if (const std::uint32_t now = loader_epoch(); now != told) {
      told = now;
      ctx_.desk()->add(Counter::kLoaderChanges);
      send_touch(layer, decode, true);
      continue;
    }
    const auto open =
        std::find_if(set_.begin(), set_.end(), [](const ring::TouchMember& m) { return m.needs != 0; });
    const std::uint64_t begin = stats::ticks();
    ctx_.sleep(WaitFor::kExpert, ring::expert_key(layer, open->expert),
               [&] { return !from_loader_.empty() || loader_epoch() != told || cancelled(); });
    slept_ticks_ += stats::ticks() - begin;
  }
  return true;
}

void ExpertClient::lease_ready(std::uint32_t layer) {
  leased_.clear();
  for (std::uint32_t m = 0; m < set_.size(); ++m) {
    const std::uint32_t key = ring::expert_key(layer, set_[m].expert);
    // The index is a hint; the slot word decides.
    const std::uint32_t hint =
        dir_->index()[layer * dir_->experts + set_[m].expert].load(std::memory_order_acquire);
    const bool held = hint != 0 && hint <= dir_->slots && slab::try_lease(row_, dir_, hint - 1, key) != 0;
    service::crash_point(service::CrashPoint::kLeaseWritten);
    set_[m].needs = held ? 0 : 1;
    if (held)
      leased_.push_back({{m, slab_ + std::uint64_t{hint - 1} * dir_->stride}, hint - 1});
    else if (hint != 0 && hint <= dir_->slots)
      lease_ended(hint - 1);
  }
  ctx_.desk()->add(Counter::kLeaseHits, leased_.size());
  ctx_.desk()->add(Counter::kNeeds, set_.size() - leased_.size());
}

void ExpertClient::use_and_release(Use use) {
  if (leased_.empty()) return;
  batch_.clear();
  for (const Leased& l : leased_) batch_.push_back(l.expert);
  use(batch_);
  for (const Leased& l : leased_) {
    slab::release_lease(row_, l.slot);
    lease_ended(l.slot);
  }
  leased_.clear();
}

void ExpertClient::lease_ended(std::uint32_t slot) {
  if (loader_board_->waits_for_lease.load(std::memory_order_seq_cst) == std::uint64_t{slot} + 1)
    ctx_.bell(StageId::kLoader).ring();
}

void ExpertClient::choices(std::span<const std::uint32_t> experts, std::span<const float> weights) {
  if (!traced_) return;
  choices_.clear();
  for (std::size_t i = 0; i < experts.size(); ++i)
    choices_.push_back({weights[i], static_cast<std::uint16_t>(experts[i]), 0});
}

void ExpertClient::end_step() {
  if (!traced_) return;
  to_loader_.ring_peer();
  ctx_.wait(WaitFor::kRingSpace, shm::index(shm::EdgeId::kComputeLoader),
            [&] { return to_loader_.in_ring() == 0; });
}

void ExpertClient::send_touch(std::uint32_t layer, bool decode, bool again) {
  ring::Message m;
  m.kind = ring::Kind::kTouch;
  m.flags = static_cast<std::uint8_t>((decode ? ring::kTouchDecode : 0) | (again ? ring::kTouchAgain : 0));
  m.key = ring::expert_key(layer, 0);
  m.aux = step_;
  m.payload = std::as_bytes(std::span<const ring::TouchMember>(set_));
  if (traced_ && !again) {
    m.flags |= ring::kTouchChoices;
    m.slot = static_cast<std::uint32_t>(set_.size());
    payload_.assign(m.payload.begin(), m.payload.end());
    const auto rows = std::as_bytes(rows_), choices = std::as_bytes(std::span(choices_));
    payload_.insert(payload_.end(), rows.begin(), rows.end());
    payload_.insert(payload_.end(), choices.begin(), choices.end());
    m.payload = payload_;
  }
  publish(m, any_open());
  if (!again) ctx_.desk()->add(Counter::kTouches);
}

/// Nobody is woken: it is for the counts alone.
void ExpertClient::kept(std::uint32_t layer, std::span<const ring::TouchMember> set) {
  ring::Message m;
  m.kind = ring::Kind::kKept;
  m.key = ring::expert_key(layer, 0);
  m.aux = step_;
  m.payload = std::as_bytes(set);
  publish(m, false);
}

/// Nobody is woken: the loader reads for this layer, and looks when the next of those reads ends.
void ExpertClient::guess(std::uint32_t layer, std::span<const std::uint32_t> experts) {
  guess_.clear();
  for (const std::uint32_t e : experts) guess_.push_back({static_cast<std::uint16_t>(e), 0, 1});
  ring::Message m;
  m.kind = ring::Kind::kGuess;
  m.key = ring::expert_key(layer, 0);
  m.aux = step_;
  m.payload = std::as_bytes(std::span<const ring::TouchMember>(guess_));
  to_loader_.publish(m, false);
}

void ExpertClient::send_need(std::uint32_t key) {
  ring::Message m;
  m.kind = ring::Kind::kNeed;
  m.key = key;
  m.aux = step_;
  publish(m, true);
}

void ExpertClient::publish(const ring::Message& m, bool wake) {
  while (!to_loader_.publish(m, wake))
    ctx_.sleep(WaitFor::kRingSpace, shm::index(shm::EdgeId::kComputeLoader),
               [&] { return to_loader_.has_space(m.payload.size()); });
}

bool ExpertClient::take_answers(std::uint32_t layer, Fail fail) {
  bool mine = false;
  while (const ring::Descriptor* d = from_loader_.front()) {
    const auto it = std::find_if(set_.begin(), set_.end(), [&](const ring::TouchMember& m) {
      return m.needs != 0 && ring::expert_key(layer, m.expert) == d->key;
    });
    const std::uint32_t slot = d->slot;
    std::uint32_t lost = 0;
    if (it == set_.end()) {
      // An answer to an earlier life, or a second one to this: nobody waits for it.
    } else if (d->kind == ring::Kind::kSlotFailed) {
      const auto text = from_loader_.payload(*d);
      fail(static_cast<std::uint32_t>(it - set_.begin()),
           std::string(reinterpret_cast<const char*>(text.data()), text.size()));
      it->needs = 0;
      mine = true;
    } else if (d->kind == ring::Kind::kSlotReady && slot < dir_->slots &&
               slab::try_lease(row_, dir_, slot, d->key) != 0) {
      service::crash_point(service::CrashPoint::kLeaseWritten);
      leased_.push_back(
          {{static_cast<std::uint32_t>(it - set_.begin()), slab_ + std::uint64_t{slot} * dir_->stride},
           slot});
      it->needs = 0;
      mine = true;
    } else {
      lost = d->key;  // a later loader has evicted it: ask again
    }
    const bool retry = it != set_.end() && it->needs != 0 && lost == d->key;
    from_loader_.pop();
    if (slot < dir_->slots) lease_ended(slot);
    if (retry) send_need(lost);
  }
  return mine;
}

}  // namespace wisp::compute
