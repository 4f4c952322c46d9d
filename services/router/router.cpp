#include "services/router/router.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "plan/cpus.hpp"

namespace wisp::router {

using shm::EdgeId;
using shm::Finish;
using shm::StageId;
using shm::WaitFor;
using stats::Counter;

namespace {
/// Longer than the kernel takes to wake this thread on another core.
constexpr std::uint64_t kSpinNs = 100'000;
}  // namespace

RouterStage::RouterStage(service::StageContext& ctx)
    : ctx_(ctx),
      board_(shm::extra_of<shm::RouterBoard>(ctx.desk())),
      drafts_(ctx, journal_),
      from_gateway_(ctx.consumer(EdgeId::kGatewayRouter)),
      to_gateway_(ctx.producer(EdgeId::kRouterGateway)),
      to_compute_(ctx.producer(EdgeId::kRouterCompute)),
      from_compute_(ctx.consumer(EdgeId::kComputeRouter)),
      spare_core_(plan::usable_cores() > ctx.plan().threads) {}

Status RouterStage::attach() {
  shm::Journal* journal = ctx_.at().journal;
  if (journal->profile_hash != ctx_.plan().profile_hash)
    return corrupt("the journal was written under another numerics profile or model; start a new run");
  kv_generation_ = static_cast<std::uint32_t>(ctx_.desk()->region.generation);
  for (const std::string& what : journal_.attach(journal, ctx_.plan().kv_pages, kv_generation_))
    spdlog::error("journal: {} does not hold its checksum and is dropped", what);
  drafts_.attach();
  rows_at_token_.assign(journal_.count(), 0);
  planner_.emplace(journal_, chunk_rule(ctx_.plan()), ctx_.plan().parallel, ctx_.plan().kv_pages);
  for (std::uint32_t i = 0; i < journal_.count(); ++i) {
    const bool give_up = journal_.in_use(i) && journal_.finished(i);
    board_->cancel[i].store(give_up ? journal_.at(i).request.load() : 0, std::memory_order_seq_cst);
  }
  // The predecessor may have died between a step and this count of it.
  board_->next_step.store(to_compute_.tail(), std::memory_order_release);
  return {};
}

Result<std::unique_ptr<service::Stage>> make_router(service::StageContext& ctx) {
  auto stage = std::make_unique<RouterStage>(ctx);
  WISP_TRY(stage->attach());
  return std::unique_ptr<service::Stage>(std::move(stage));
}

bool RouterStage::poll() {
  bool worked = drain_results();
  worked |= drafts_.take();
  worked |= drain_gateway();
  worked |= expire_records();
  worked |= admit_queued();
  worked |= publish_step();
  board_->active.store(active(), std::memory_order_relaxed);
  board_->queued.store(queued(), std::memory_order_relaxed);
  return worked;
}

bool RouterStage::has_work() {
  const ring::Descriptor* d = from_gateway_.front();
  const bool blocked = d != nullptr && d->kind == ring::Kind::kSubmit && journal_.find_free() < 0;
  if ((d != nullptr && !blocked) || !from_compute_.empty() || drafts_.has_messages()) return true;
  return !step_in_flight() && !gate_closed() && planner_->any() && !drafts_.waits();
}

void RouterStage::sleep(service::StageContext& ctx) {
  WaitFor why = WaitFor::kWork;
  std::uint64_t detail = 0;
  if (!step_in_flight() && drafts_.waits())
    return ctx.sleep(
        WaitFor::kDrafts, 0, [this] { return has_work(); }, nullptr, drafts_.remaining_ns());
  if (step_in_flight()) {
    why = WaitFor::kStepResult;
    detail = to_compute_.tail() - 1;
  } else if (gate_closed() && active() > 0) {
    why = WaitFor::kStepGate;
    detail = to_compute_.tail();
  } else if (queued() > 0) {
    why = WaitFor::kKvPages;
  }
  if (why == WaitFor::kStepResult && spare_core_ && await_result()) return;
  bool ages = false;
  for (std::uint32_t i = 0; i < journal_.count(); ++i) ages |= journal_.in_use(i);
  ctx.sleep(
      why, detail, [this] { return has_work(); }, nullptr, ages ? 1'000'000'000ULL : ~0ULL);
}

bool RouterStage::await_result() {
  const auto ready = [this] { return has_work(); };
  const std::uint64_t now = shm::monotonic_now();
  // Steps of decode take much the same time: it looks from shortly before the last one's to shortly after.
  const std::uint64_t due = published_ns_ + step_ns_, begin = due - std::min(step_ns_ / 8, kSpinNs);
  if (now < begin && begin - now > kSpinNs) {
    ctx_.sleep(WaitFor::kStepResult, to_compute_.tail() - 1, ready, nullptr, begin - now);
    return true;
  }
  if (now > due + kSpinNs) return false;  // later than the last one: it may be much later
  return service::StageContext::spin(due + kSpinNs - now, ready);
}

// --- messages of the gateway ---

bool RouterStage::drain_gateway() {
  bool worked = false;
  while (const ring::Descriptor* d = from_gateway_.front()) {
    const int i = d->kind == ring::Kind::kSubmit ? -1 : journal_.find(d->request);
    switch (d->kind) {
      case ring::Kind::kSubmit:
        if (!on_submit(*d)) return worked;
        break;
      case ring::Kind::kCancel:
        if (i >= 0) cancel(static_cast<std::uint32_t>(i), Finish::kCancelled);
        break;
      case ring::Kind::kFinishAt:
        on_finish_at(*d);
        break;
      case ring::Kind::kAcknowledge:
        if (i >= 0) forget(static_cast<std::uint32_t>(i));
        break;
      case ring::Kind::kAdopt:
        if (i >= 0) journal_.adopt(static_cast<std::uint32_t>(i), d->gen);
        break;
      default:
        spdlog::warn("edge 1: message of kind {} is not for the router", static_cast<int>(d->kind));
        break;
    }
    from_gateway_.pop();
    worked = true;
  }
  return worked;
}

bool RouterStage::on_submit(const ring::Descriptor& d) {
  if (journal_.find(d.request) >= 0) return true;  // opened by an earlier life that died before it advanced
  const int slot = journal_.find_free();
  if (slot < 0) return false;
  // The gateway faces the network: nothing of its message is believed unchecked.
  const auto payload = from_gateway_.payload(d);
  shm::SubmitMessage m;
  if (d.request == 0 || payload.size() < sizeof m) {
    spdlog::error("edge 1: a submission of {} bytes is malformed and dropped", payload.size());
    return true;
  }
  std::memcpy(&m, payload.data(), sizeof m);
  const shm::RequestParams& p = m.params;
  const std::uint64_t ids = (payload.size() - sizeof m) / sizeof(std::uint32_t);
  if (p.prompt_tokens == 0 || p.prompt_tokens > ids || p.max_tokens == 0 || p.eos_count > shm::kMaxEos ||
      p.logprobs > journal_.logprobs() ||
      std::uint64_t{p.prompt_tokens} + p.max_tokens > journal_.capacity()) {
    spdlog::error(
        "edge 1: request {} with {} prompt tokens and {} to generate (log-probabilities: {}) does "
        "not fit a context of {} (log-probabilities: {})",
        d.request, p.prompt_tokens, p.max_tokens, p.logprobs, journal_.capacity(), journal_.logprobs());
    return true;
  }
  const auto* prompt = reinterpret_cast<const std::uint32_t*>(payload.data() + sizeof m);
  const auto epoch = static_cast<std::uint32_t>(d.request >> 32);
  journal_.open(static_cast<std::uint32_t>(slot), d.request, p, {prompt, p.prompt_tokens}, epoch);
  drafts_.begin(static_cast<std::uint32_t>(slot));
  board_->cancel[slot].store(0, std::memory_order_seq_cst);
  ctx_.desk()->add(Counter::kRequests);
  return true;
}

void RouterStage::on_finish_at(const ring::Descriptor& d) {
  const int found = journal_.find(d.request);
  if (found < 0) return;
  const auto i = static_cast<std::uint32_t>(found);
  const shm::CommitWord c = journal_.committed(i);
  // A later finish with a smaller position replaces an earlier one.
  if (d.pos > c.length || (c.finish != Finish::kNone && d.pos == c.length)) return;
  journal_.finish(i, d.pos, Finish::kStopString, ctx_.now());
  board_->cancel[i].store(d.request, std::memory_order_seq_cst);
}

void RouterStage::cancel(std::uint32_t record, Finish why) {
  if (journal_.finished(record)) return;
  journal_.finish(record, journal_.committed(record).length, why, ctx_.now());
  board_->cancel[record].store(journal_.at(record).request.load(), std::memory_order_seq_cst);
}

void RouterStage::forget(std::uint32_t record) {
  cancel(record, Finish::kCancelled);
  journal_.recycle(record);
}

bool RouterStage::expire_records() {
  bool worked = false;
  const std::uint64_t now = ctx_.now();
  const shm::StageLife& gateway = ctx_.life().stage[shm::index(StageId::kGateway)];
  const std::uint32_t epoch = gateway.epoch.load(std::memory_order_acquire);
  const bool ready =
      gateway.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(shm::StageState::kReady);
  const std::uint64_t since = gateway.started_ns.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < journal_.count(); ++i) {
    if (!journal_.in_use(i)) continue;
    const shm::JournalRecord& r = journal_.at(i);
    const bool orphan = r.adopted_by.load(std::memory_order_relaxed) != epoch;
    if (orphan && (!ready || now < since + kRecordLifeNs)) continue;
    const bool old =
        journal_.finished(i) && now > r.finished_ns.load(std::memory_order_relaxed) + kRecordLifeNs;
    if (!orphan && !old) continue;
    forget(i);
    worked = true;
  }
  return worked;
}

// --- steps ---

bool RouterStage::step_in_flight() const {
  const std::uint64_t published = to_compute_.tail();
  if (results_seen_ >= published) return false;
  // Compute publishes a result before it advances, so once its head is past the last step and edge 4 is
  // empty, every result has been seen, perhaps by an earlier life. The head must be read first.
  return to_compute_.peer_head() < published || !from_compute_.empty();
}

bool RouterStage::gate_closed() const {
  return to_compute_.tail() >= ctx_.life().gate.load(std::memory_order_acquire);
}

std::uint32_t RouterStage::active() const {
  std::uint32_t n = 0;
  for (std::uint32_t i = 0; i < journal_.count(); ++i)
    n += journal_.in_use(i) && !journal_.finished(i) &&
         journal_.at(i).admitted.load(std::memory_order_relaxed) != 0;
  return n;
}

std::uint32_t RouterStage::queued() const {
  std::uint32_t n = 0;
  for (std::uint32_t i = 0; i < journal_.count(); ++i)
    n += journal_.in_use(i) && !journal_.finished(i) &&
         journal_.at(i).admitted.load(std::memory_order_relaxed) == 0;
  return n;
}

bool RouterStage::admit_queued() {
  bool worked = false;
  while (active() < ctx_.plan().parallel) {
    int first = -1;
    for (std::uint32_t i = 0; i < journal_.count(); ++i) {
      if (!journal_.in_use(i) || journal_.finished(i) ||
          journal_.at(i).admitted.load(std::memory_order_relaxed) != 0)
        continue;
      if (first < 0 || journal_.at(i).order < journal_.at(static_cast<std::uint32_t>(first)).order)
        first = static_cast<int>(i);
    }
    if (first < 0) break;
    const shm::RequestParams& p = journal_.at(static_cast<std::uint32_t>(first)).params;
    const std::uint32_t need = (p.prompt_tokens + p.max_tokens + 15) / 16;
    const std::span<const std::uint32_t> pages = planner_->free_pages();
    if (pages.size() < need) break;  // first come, first served: a smaller one behind it does not overtake
    journal_.admit(static_cast<std::uint32_t>(first), pages.first(need));
    worked = true;
  }
  return worked;
}

bool RouterStage::publish_step() {
  if (step_in_flight() || gate_closed() || drafts_.waits()) return false;
  const std::span<const PlannedRows> rows = planner_->plan();
  if (rows.empty()) return false;
  drafts_.add_to(*planner_, rows);
  const std::uint64_t step = to_compute_.tail();
  ring::Message m;
  m.kind = ring::Kind::kStep;
  m.aux = step;
  m.payload = planner_->encode(step, kv_generation_);
  if (!to_compute_.publish(m)) {
    WISP_CHECK(to_compute_.in_ring() > 0);  // an empty edge holds any step: common/plan sizes it so
    return false;
  }
  published_ns_ = shm::monotonic_now();
  board_->next_step.store(step + 1, std::memory_order_release);
  ctx_.desk()->add(Counter::kSteps);
  drafts_.published(rows);
  return true;
}

}  // namespace wisp::router
