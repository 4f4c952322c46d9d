#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "services/loader/loader.hpp"

namespace wisp::loader {

using shm::StageId;
using stats::Counter;

namespace {
constexpr int kMessagesAtOnce = 64;
// A peer that asks without end is held back by its own ring, not by our memory.
constexpr std::size_t kMaxWants = 65536;
constexpr std::size_t kMaxAnswers = 65536;
constexpr std::size_t kMaxErrorText = 480;
}  // namespace

bool LoaderStage::accepts_input() const {
  return wants_.size() < kMaxWants && answers_.size() < kMaxAnswers;
}

bool LoaderStage::key_valid(std::uint32_t key) const {
  const std::uint32_t layer = ring::layer_of(key);
  return policy_.valid(key) && layer < manifest_.experts.size() && !manifest_.experts[layer].file.empty() &&
         ring::expert_of(key) < manifest_.experts[layer].extents.size();
}

/// Drops what only the last life of compute waited for. A new one repeats its open touch.
bool LoaderStage::follow_compute() {
  const std::uint32_t epoch = ctx_.peer(StageId::kCompute)->attached_epoch.load(std::memory_order_acquire);
  if (epoch == compute_epoch_) return false;
  if (compute_epoch_ != 0) {
    spdlog::info("compute is now epoch {}: open needs of epoch {} are dropped", epoch, compute_epoch_);
    wants_.clear();
    answers_.clear();
    for (Slot& s : slots_) s.needed = s.answer_pending = false;
    policy_.admit(0, {}, false);
    end_lease_wait();
    if (trace_) trace_->restart("a new compute, which the open touch was not finished for");
  }
  compute_epoch_ = epoch;
  return true;
}

bool LoaderStage::take_messages() {
  int taken = 0;
  for (; taken < kMessagesAtOnce && accepts_input(); ++taken) {
    const ring::Descriptor* d = input_.front();
    if (d == nullptr) break;
    // Compute attaches before it publishes: who sees its message sees its epoch.
    follow_compute();
    switch (d->kind) {
      case ring::Kind::kTouch:
        on_touch(*d);
        break;
      case ring::Kind::kNeed:
        on_need(d->key);
        break;
      case ring::Kind::kGuess:
        on_guess(*d);
        break;
      case ring::Kind::kKept:
        on_kept(*d);
        break;
      default:
        spdlog::warn("message of kind {} on the edge from compute is ignored", static_cast<int>(d->kind));
    }
    input_.pop();
  }
  return taken > 0;
}

void LoaderStage::take_members(const ring::Descriptor& d, std::uint32_t layer) {
  auto payload = input_.payload(d);
  if ((d.flags & ring::kTouchChoices) != 0)
    payload = payload.first(std::min(payload.size(), d.slot * sizeof(ring::TouchMember)));
  members_.resize(payload.size() / sizeof(ring::TouchMember));
  if (!members_.empty())
    std::memcpy(members_.data(), payload.data(), members_.size() * sizeof(ring::TouchMember));
  std::erase_if(members_, [&](const ring::TouchMember& m) {
    const std::uint32_t key = ring::expert_key(layer, m.expert);
    if (key_valid(key)) return false;
    if (m.needs != 0)
      answer_failed(key, "layer " + std::to_string(layer) + " has no expert " + std::to_string(m.expert));
    return true;
  });
  set_.clear();
  for (const auto& m : members_) set_.push_back({ring::expert_key(layer, m.expert), m.rows});
}

/// What the rows of a touch chose, for the trace; nothing where the message does not say.
void LoaderStage::take_choices(const ring::Descriptor& d) {
  rows_.clear();
  choices_.clear();
  if ((d.flags & ring::kTouchChoices) == 0) return;
  const auto payload = input_.payload(d);
  const std::size_t members = std::min(payload.size(), d.slot * sizeof(ring::TouchMember));
  const std::size_t row = sizeof(ring::TouchRow) + policy_.shape().top_k * sizeof(ring::TouchChoice);
  const std::size_t rows = (payload.size() - members) / row;
  rows_.resize(rows);
  choices_.resize(rows * policy_.shape().top_k);
  if (rows == 0) return;
  const std::byte* const from = payload.data() + members;
  std::memcpy(rows_.data(), from, rows * sizeof(ring::TouchRow));
  std::memcpy(choices_.data(), from + rows * sizeof(ring::TouchRow),
              choices_.size() * sizeof(ring::TouchChoice));
}

void LoaderStage::on_touch(const ring::Descriptor& d) {
  const std::uint32_t layer = ring::layer_of(d.key);
  const bool again = (d.flags & ring::kTouchAgain) != 0, decode = (d.flags & ring::kTouchDecode) != 0;
  if (again) {
    // The whole of what its sender still waits for: it replaces what was open.
    wants_.clear();
    answers_.clear();
    for (Slot& s : slots_) s.needed = s.answer_pending = false;
  }
  take_members(d, layer);
  if (set_.empty()) return;
  const std::span<const std::uint8_t> resident =
      policy_.admit(layer, set_, !again, decode ? CachePolicy::Rows::kDecode : CachePolicy::Rows::kPrompt);
  std::uint64_t hits = 0, ahead = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    // Leased without asking: it was there, even if it has been evicted since.
    const bool leased = members_[i].needs == 0;
    hits += resident[i] != 0 || leased ? 1 : 0;
    if (leased)
      policy_.serve(set_[i].key);
    else if (!staged(set_[i].key))
      want(set_[i].key, true);
    else
      ++ahead;
  }
  // What is there already, or nearly, goes first.
  for (std::size_t i = 0; ahead > 0 && i < members_.size(); ++i) {
    if (members_[i].needs == 0 || !staged(set_[i].key)) continue;
    wants_.push_front({set_[i].key, true});
    --ahead;
  }
  settle_guesses();
  blocked_ = Blocked::kNo;
  if (again) return;
  learn(layer);
  if (trace_) {
    take_choices(d);
    trace_->add({d.aux, layer, decode, members_, resident, rows_, choices_});
    if (trace_->lost()) lose_trace();
  }
  ctx_.desk()->add(decode ? Counter::kDecodeAccesses : Counter::kPrefillAccesses, members_.size());
  ctx_.desk()->add(decode ? Counter::kDecodeHits : Counter::kPrefillHits, hits);
}

void LoaderStage::on_kept(const ring::Descriptor& d) {
  const std::uint32_t layer = ring::layer_of(d.key);
  take_members(d, layer);
  if (set_.empty()) return;
  policy_.kept(layer, set_);
  learn(layer);
}

void LoaderStage::on_need(std::uint32_t key) {
  if (!key_valid(key))
    return answer_failed(key, "layer " + std::to_string(ring::layer_of(key)) + " has no expert " +
                                  std::to_string(ring::expert_of(key)));
  want(key, true);
  blocked_ = Blocked::kNo;
}

/// Sees to it that `key` becomes resident, and is answered once if `needed`: at once, when its read is over,
/// or after it has found a slot.
void LoaderStage::want(std::uint32_t key, bool needed) {
  if (const auto slot = policy_.slot_of(key)) {
    Slot& s = slots_[*slot];
    if (s.state == State::kFilling)
      s.needed = s.needed || needed;
    else if (needed && !s.answer_pending)
      answer_ready(*slot);
    return;
  }
  if (Want* const open = open_want(key))
    open->needed = open->needed || needed;
  else
    wants_.push_back({key, needed});
}

LoaderStage::Want* LoaderStage::open_want(std::uint32_t key) {
  for (std::size_t i = 0; i < wants_.size(); ++i)
    if (wants_[i].key == key) return &wants_[i];
  return nullptr;
}

void LoaderStage::answer_ready(std::uint32_t slot) {
  const Slot& s = slots_[slot];
  send({ring::Kind::kSlotReady, s.key, slot, s.generation, {}});
}

void LoaderStage::answer_failed(std::uint32_t key, const std::string& text) {
  const std::uint64_t arena = ctx_.desk()->edges[shm::index(shm::EdgeId::kLoaderCompute)].arena_size;
  send({ring::Kind::kSlotFailed, key, 0, 0, text.substr(0, std::min<std::size_t>(kMaxErrorText, arena / 4))});
}

/// Publishes `a`, or keeps it until edge 6 has room: behind others that wait, so that order stays.
void LoaderStage::send(Answer a) {
  if (answers_.empty() && publish(a)) return;
  if (a.kind == ring::Kind::kSlotReady) slots_[a.slot].answer_pending = true;
  answers_.push_back(std::move(a));
}

bool LoaderStage::publish(const Answer& a) {
  ring::Message m;
  m.kind = a.kind;
  m.key = a.key;
  m.slot = a.slot;
  m.gen = a.generation;
  m.payload = std::as_bytes(std::span(a.text));
  if (!output_.publish(m)) return false;
  if (a.kind == ring::Kind::kSlotReady) policy_.serve(a.key);
  return true;
}

bool LoaderStage::flush_answers() {
  bool sent = false;
  while (!answers_.empty() && publish(answers_.front())) {
    if (answers_.front().kind == ring::Kind::kSlotReady) slots_[answers_.front().slot].answer_pending = false;
    answers_.pop_front();
    sent = true;
  }
  return sent;
}

}  // namespace wisp::loader
