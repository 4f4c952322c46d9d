#include <spdlog/spdlog.h>
#include <xxhash.h>

#include "service/crash_point.hpp"
#include "services/loader/loader.hpp"
#include "services/loader/trace_recorder.hpp"

namespace wisp::loader {

using service::CrashPoint;
using slab::SlotState;
using slab::SlotWord;
using stats::Counter;

/// Gives slots to wants in order, as many as the drive has room for: a victim chosen later than needed is a
/// victim that may still be hit, and fewer slots are lost to a dead loader's reads.
bool LoaderStage::place_wants() {
  bool placed = false;
  while (!wants_.empty()) {
    const Want w = wants_.front();
    const auto ahead = staged(w.key);
    if (!ahead && !queue_->has_room()) break;
    if (policy_.slot_of(
            w.key)) {  // cannot be: want() looks first. Said twice, answered twice is the worst of it
      wants_.pop_front();
      want(w.key, w.needed);
      continue;
    }
    const auto slot = take_slot();
    if (!slot) return placed;
    if (!bring(*slot)) continue;
    wants_.pop_front();
    if (ahead)
      swap_in(*ahead, *slot, w.needed);
    else
      begin_fill(*slot, w.key, w.needed);
    placed = true;
  }
  if (wants_.empty()) {
    blocked_ = Blocked::kNo;
    end_lease_wait();
  }
  return placed;
}

void LoaderStage::begin_fill(std::uint32_t slot, std::uint32_t key, bool needed) {
  policy_.insert(slot, key);
  slots_[slot].needed = needed;
  read_into(slot, key, Urgency::kDemand);
}

/// Starts the reads of an expert into a slot that holds nothing.
void LoaderStage::read_into(std::uint32_t slot, std::uint32_t key, Urgency urgency) {
  Slot& s = slots_[slot];
  s.state = State::kFilling;
  s.answer_pending = false;
  s.key = key;
  s.generation = SlotWord::next_generation(s.generation);
  // The epoch first: a word that says FILLING is never read with the epoch of an earlier fill.
  entry(slot).fill_epoch.store(ctx_.epoch(), std::memory_order_seq_cst);
  store_word(slot, SlotState::kFilling);
  service::crash_point(CrashPoint::kFillingStored);
  read_expert(slot, key, slot, urgency);
}

/// Reads an expert's extent and its stripes into `slot`, done together under `tag`.
void LoaderStage::read_expert(std::uint32_t slot, std::uint32_t key, std::uint64_t tag, Urgency urgency) {
  const std::uint32_t layer = ring::layer_of(key);
  const model::ExpertExtent& extent = manifest_.experts[layer].extents[ring::expert_of(key)];
  std::byte* const to = slab_ + slot * dir_->stride;
  const std::uint64_t here = stripes_.empty() ? dir_->stride : stripes_.front().begin;
  parts_.assign(1, {&files_[layer_file_[layer]], extent.offset, here, to, tag, urgency});
  for (std::size_t i = 0; i < stripes_.size(); ++i) {
    const model::Stripe& stripe = stripes_[i];
    parts_.push_back({&files_[stripe_file_[layer * stripes_.size() + i]],
                      stripe.offset_of(ring::expert_of(key)), stripe.bytes(), to + stripe.begin, tag,
                      urgency});
  }
  queue_->add(parts_);
}

/// The files and places that an expert was read from, for people.
std::string LoaderStage::where_is(std::uint32_t key) const {
  const std::uint32_t layer = ring::layer_of(key);
  std::string text = files_[layer_file_[layer]].path + ", offset " +
                     std::to_string(manifest_.experts[layer].extents[ring::expert_of(key)].offset);
  for (std::size_t i = 0; i < stripes_.size(); ++i)
    text += ", and its stripe in " + files_[stripe_file_[layer * stripes_.size() + i]].path + ", offset " +
            std::to_string(stripes_[i].offset_of(ring::expert_of(key)));
  return text;
}

/// What is wrong with the expert that has been read into `slot`, if anything is.
std::optional<Error> LoaderStage::check_expert(std::uint32_t slot) {
  if (!ctx_.plan().options.check_experts) return std::nullopt;
  const std::uint32_t key = slots_[slot].key;
  const std::uint64_t payload = manifest_.spec.expert.payload;
  const auto& extent = manifest_.experts[ring::layer_of(key)].extents[ring::expert_of(key)];
  if (XXH3_64bits(slab_ + slot * dir_->stride, payload) == extent.checksum) return std::nullopt;
  ctx_.desk()->add(Counter::kChecksumFailures);
  return corrupt(where_is(key) + ", " + std::to_string(payload) + " bytes: they do not match their checksum");
}

/// All reads of the slot are over: READY and the answer, or FREE and the reason.
void LoaderStage::finish_fill(std::uint32_t slot, std::optional<Error> error) {
  WISP_CHECK(slots_[slot].state == State::kFilling);
  if (!error) error = check_expert(slot);
  if (error) return fail_fill(slot, std::move(*error));
  make_ready(slot);
}

void LoaderStage::make_ready(std::uint32_t slot) {
  Slot& s = slots_[slot];
  service::crash_point(CrashPoint::kCqeBeforeReady);
  entry(slot).bytes.store(static_cast<std::uint32_t>(manifest_.spec.expert.payload),
                          std::memory_order_relaxed);
  s.state = State::kReady;
  store_word(slot, SlotState::kReady);
  dir_->index()[ring::layer_of(s.key) * dir_->experts + ring::expert_of(s.key)].store(
      slot + 1, std::memory_order_release);
  service::crash_point(CrashPoint::kReadyBeforePublish);
  if (s.needed) {
    s.needed = false;
    answer_ready(slot);
  } else {
    policy_.serve(s.key);
  }
}

void LoaderStage::fail_fill(std::uint32_t slot, Error error) {
  Slot& s = slots_[slot];
  const std::uint32_t key = s.key;
  const bool needed = s.needed;
  ctx_.desk()->add(Counter::kReadFailures);
  policy_.remove(slot);
  if (trace_) trace_->restart("an expert that was counted could not be read");
  s.state = State::kFree;
  s.needed = false;
  store_word(slot, SlotState::kFree);
  const std::string text = "layer " + std::to_string(ring::layer_of(key)) + ", expert " +
                           std::to_string(ring::expert_of(key)) + ": " + error.text +
                           "; check the model with `wisp verify`";
  spdlog::error("{}", text);
  if (needed) answer_failed(key, text);
}

}  // namespace wisp::loader
