#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>

#include "services/loader/loader.hpp"
#include "services/loader/loader_stage.hpp"

namespace wisp::loader {

using shm::StageId;
using slab::SlotState;
using slab::SlotWord;

namespace {
/// How long nobody has asked for anything before the drive counts as idle.
constexpr std::uint64_t kQuietNs = 200'000'000;
/// Walks over the experts in an order that no drive guesses.
constexpr std::uint64_t kStep = 7919;
}  // namespace

/// Takes the figure of the model's drive where an earlier run has found it out, or gets ready to.
void LoaderStage::begin_drive(const LoaderParts& parts) {
  const char* const file = std::getenv(kDrivesVariable);
  if (file == nullptr || *file == '\0' || manifest_.spec.expert_count() == 0) return;
  drive_.file = file;
  drive_.identity = drive_identity(drives_);
  if (drive_.identity.empty()) return;
  auto known = load_drive_figure(drive_.file, drive_.identity, dir_->stride);
  if (known.ok()) {
    use_figure(*known, "known");
    return;
  }
  if (known.error().code != ErrorCode::kNotFound)
    spdlog::warn("what is known of drives is not used: {}", known.error().text);
  DriveProbe::Options options = parts.probe;
  // The first arrival of a burst only starts its clock.
  options.burst_bytes = std::max(options.burst_bytes, 4 * dir_->stride);
  options.most_depth = std::min<std::uint64_t>(options.most_depth, dir_->slots / 2 * dir_->stride);
  options.can_pin = backend_->kind() == BackendKind::kUring;
  probe_.emplace(options);
}

void LoaderStage::use_figure(const DriveFigure& figure, const char* how) {
  drive_.depth = figure.depth;
  queue_->set_depth(figure.depth);
  drive_.pin = figure.pinned;
  spdlog::info("drive {}: {} bytes in flight, {} ({}, {:.2f} GB/s)", drive_.identity, figure.depth,
               figure.pinned ? "registered buffers" : "plain buffers", how, figure.bytes_per_s / 1e9);
}

/// The slab is registered piece by piece, once it is in memory.
bool LoaderStage::pin_slab() {
  if (!drive_.pin || !memory_settled_ || !queue_->idle()) return false;
  const std::uint64_t before = drive_.pinned;
  drive_.pinned = backend_->pin(before + 1);
  drive_.pin = drive_.pinned > before && drive_.pinned < ctx_.plan().slab_bytes();
  return true;
}

/// Whether the drive has nothing to do, and will not for a moment.
bool LoaderStage::drive_is_idle() const {
  const shm::Desk* compute = ctx_.peer(StageId::kCompute);
  return !dense_ && memory_settled_ && warm_.empty() && wants_.empty() && input_.empty() &&
         compute->attached_epoch.load(std::memory_order_acquire) != 0 &&
         compute->waits_for.load(std::memory_order_relaxed) ==
             static_cast<std::uint32_t>(shm::WaitFor::kWork);
}

bool LoaderStage::may_probe() const {
  return probe_ && bursts_.slots.empty() && queue_->idle() && drive_is_idle() &&
         shm::monotonic_now() -
                 ctx_.peer(StageId::kCompute)->waits_since_ns.load(std::memory_order_relaxed) >=
             kQuietNs;
}

/// Reads bursts of experts into slots that are free, and leaves them free: what it reads is nobody's. Given
/// up as soon as anybody asks for anything, reads in the queue apart, and begun again when the drive is idle
/// again.
bool LoaderStage::probe() {
  if (!probe_) return false;
  if (bursts_.slots.empty()) {
    if (!may_probe()) return false;
    take_probe_slots();
    if (bursts_.slots.empty()) probe_.reset();  // the cache is full: its contents are worth more
    return true;
  }
  if (!drive_is_idle()) {
    const bool was = bursts_.running;
    bursts_.running = false;
    free_probe_slots();
    return was;
  }
  if (bursts_.running) return read_for_probe();  // keeps the queue as full as demand would
  if (bursts_.in_flight > 0) return false;
  begin_burst();
  return true;
}

void LoaderStage::take_probe_slots() {
  const std::uint64_t most =
      std::clamp<std::uint64_t>((std::uint64_t{8} << 20) / dir_->stride + 2, 2, kMaxReads);
  while (bursts_.slots.size() < most) {
    const auto choice = policy_.choose();
    if (!choice || choice->evicts || !bring(choice->slot)) break;
    const std::uint32_t slot = choice->slot;
    policy_.withdraw(slot);
    Slot& s = slots_[slot];
    s.state = State::kFilling;
    s.key = 0;
    s.generation = SlotWord::next_generation(s.generation);
    entry(slot).fill_epoch.store(ctx_.epoch(), std::memory_order_seq_cst);
    store_word(slot, SlotState::kFilling);
    bursts_.slots.push_back(slot);
    bursts_.free.push_back(slot);
  }
  if (bursts_.slots.size() < 2) free_probe_slots();
}

/// Those that no read is in flight to.
void LoaderStage::free_probe_slots() {
  for (const std::uint32_t slot : bursts_.free) {
    slots_[slot].state = State::kFree;
    store_word(slot, SlotState::kFree);
    policy_.restore(slot);
    std::erase(bursts_.slots, slot);
  }
  bursts_.free.clear();
  if (!bursts_.slots.empty()) return;
  queue_->set_depth(drive_.depth);
  if (!drive_.pin && drive_.pinned == 0) backend_->pin(0);
}

void LoaderStage::begin_burst() {
  DriveProbe::Setting setting = probe_->setting();
  std::uint64_t end = 0;
  for (const std::uint32_t slot : bursts_.slots)
    end = std::max(end, (slot + std::uint64_t{1}) * dir_->stride);
  if (backend_->pin(setting.pinned ? end : 0) < (setting.pinned ? end : 0)) {
    probe_->no_pinning();
    return end_probe();
  }
  queue_->set_depth(setting.depth);
  bursts_.running = true;
  bursts_.requested = bursts_.arrived = bursts_.first = bursts_.first_ns = 0;
  read_for_probe();
}

bool LoaderStage::read_for_probe() {
  bool added = false;
  const std::uint64_t experts = std::uint64_t{dir_->layers} * dir_->experts;
  while (bursts_.running && !bursts_.free.empty() && queue_->has_room() &&
         bursts_.requested < probe_->burst_bytes()) {
    std::uint32_t key = 0;
    do {
      bursts_.at = (bursts_.at + kStep) % experts;
      key = ring::expert_key(static_cast<std::uint32_t>(bursts_.at / dir_->experts),
                             static_cast<std::uint32_t>(bursts_.at % dir_->experts));
    } while (!key_valid(key));
    const std::uint32_t slot = bursts_.free.back();
    bursts_.free.pop_back();
    read_expert(slot, key, kProbeTag | slot, Urgency::kDemand);
    bursts_.requested += dir_->stride;
    ++bursts_.in_flight;
    added = true;
  }
  return added;
}

void LoaderStage::on_probe_read(const ExtentDone& done) {
  bursts_.free.push_back(static_cast<std::uint32_t>(done.tag & ~kProbeTag));
  --bursts_.in_flight;
  if (done.error) {
    // Whoever needs that expert is told of it. The drive is not measured while it fails.
    spdlog::info("the drive is not probed: {}", done.error->text);
    probe_.reset();
    bursts_.running = false;
  }
  if (!bursts_.running) return free_probe_slots();
  const std::uint64_t now = shm::monotonic_now();
  bursts_.arrived += done.bytes;
  if (bursts_.first == 0) {
    bursts_.first = done.bytes;
    bursts_.first_ns = now;
  }
  read_for_probe();
  if (bursts_.in_flight > 0) return;
  // From the first arrival on: how long a read takes is not how many come.
  bursts_.running = false;
  probe_->burst(bursts_.arrived - bursts_.first, now - bursts_.first_ns);
  if (probe_->figure()) end_probe();
}

void LoaderStage::end_probe() {
  const std::optional<DriveFigure> figure = probe_->figure();
  if (!figure) return;
  probe_.reset();
  backend_->pin(0);
  free_probe_slots();
  use_figure(*figure, "measured");
  if (const Status s = save_drive_figure(drive_.file, drive_.identity, dir_->stride, *figure); !s.ok())
    spdlog::warn("what was measured of the drive is not kept: {}", s.error().text);
}

}  // namespace wisp::loader
