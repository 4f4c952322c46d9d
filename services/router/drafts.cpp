#include "services/router/drafts.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "plan/cpus.hpp"

namespace wisp::router {

using shm::EdgeId;
using shm::StageId;
using stats::Counter;

namespace {
constexpr std::array kAllSources{DraftSource::kModel, DraftSource::kShortMatch, DraftSource::kLongMatch,
                                 DraftSource::kHead};
}  // namespace

Drafts::Drafts(service::StageContext& ctx, const JournalWriter& journal)
    : ctx_(ctx),
      journal_(&journal),
      on_(ctx.plan().options.speculate != "off"),
      asks_maker_(!ctx.plan().options.draft.empty() ? ring::kAskModel
                  : ctx.plan().head_bytes != 0      ? ring::kAskHead
                                                    : 0),
      maker_(asks_maker_ == ring::kAskHead ? DraftSource::kHead : DraftSource::kModel),
      spare_core_(plan::usable_cores() > ctx.plan().threads),
      control_(ctx.plan().records, ctx.plan().options.fixed_drafts(), ctx.plan().options.draft_log) {
  if (!on_) return;
  to_speculator_ = ctx.producer(EdgeId::kRouterSpeculator);
  from_speculator_ = ctx.consumer(EdgeId::kSpeculatorRouter);
}

void Drafts::attach() {
  sequences_.assign(journal_->count(), {});
  offers_.reserve(journal_->count());
}

bool Drafts::speculator_runs() const {
  const shm::StageLife& s = ctx_.life().stage[shm::index(StageId::kSpeculator)];
  return s.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(shm::StageState::kReady) &&
         s.stopped.load(std::memory_order_relaxed) == 0 && s.traced_by.load(std::memory_order_relaxed) == 0;
}

void Drafts::begin(std::uint32_t record) {
  sequences_[record] = {};
  control_.begin(record);
}

// --- what the speculator says ---

bool Drafts::take() {
  if (!on_) return false;
  bool any = false;
  while (const ring::Descriptor* d = from_speculator_.front()) {
    on_message(*d);
    from_speculator_.pop();
    any = true;
  }
  return any;
}

void Drafts::on_message(const ring::Descriptor& d) {
  const auto payload = from_speculator_.payload(d);
  const std::size_t count = payload.size() / sizeof(std::uint32_t);
  const std::uint32_t i = d.slot;
  const auto source = static_cast<std::uint8_t>(d.flags & ~ring::kLastDraft);
  // It may be of another life, of a request that has ended, or nonsense: nothing is believed unchecked.
  bool fits = d.kind == ring::Kind::kDraft && source < kDraftSources && i < journal_->count() &&
              journal_->in_use(i) && journal_->at(i).request.load(std::memory_order_relaxed) == d.request &&
              !journal_->finished(i) && payload.size() % sizeof(std::uint32_t) == 0 &&
              count <= ring::kLongestDraft && d.pos > journal_->at(i).params.prompt_tokens &&
              d.pos <= journal_->known(i);
  Message m;
  m.pos = d.pos;
  m.count = static_cast<std::uint32_t>(count);
  if (fits && count > 0) std::memcpy(m.ids.data(), payload.data(), payload.size());
  for (std::size_t n = 0; fits && n < count; ++n) fits = m.ids[n] < ctx_.plan().vocab;
  if (!fits) return ctx_.desk()->add(Counter::kDraftsWrong);

  Sequence& s = sequences_[i];
  const auto which = static_cast<DraftSource>(source);
  const bool asked = s.asked_ns != 0 && s.asked_pos == d.pos;
  control_.answered(which, asked && d.t_pub > s.asked_ns ? d.t_pub - s.asked_ns : 0, d.aux, m.count);
  const bool last = (d.flags & ring::kLastDraft) != 0;
  if (asked && last) s.asked_ns = 0;
  if (m.count > 0) {
    s.from[source] = m;
    judge(i, which);
  }
  if (waiting_ == i && d.pos == journal_->known(i) && (last || m.count > 0)) {
    waited_ns_ += shm::monotonic_now() - waits_since_ns_;
    waiting_ = UINT32_MAX;
  }
}

/// Holds what the journal has reached of a message against it.
void Drafts::judge(std::uint32_t record, DraftSource source) {
  Message& m = sequences_[record].from[static_cast<std::size_t>(source)];
  const std::span<const std::uint32_t> ids = journal_->ids(record);
  const std::uint32_t known = journal_->known(record);
  while (m.judged < m.count && m.pos + m.judged < known) {
    const bool stood = ids[m.pos + m.judged] == m.ids[m.judged];
    control_.judge(record, source, m.judged, stood);
    ++m.judged;
    if (stood) continue;
    m.count = 0;
    return;
  }
}

// --- asking and waiting ---

void Drafts::ask(std::uint32_t record, std::uint8_t sources, std::uint32_t count) {
  if (sources == 0 || count == 0) return;
  Sequence& s = sequences_[record];
  ring::Message m;
  m.kind = ring::Kind::kDraftWanted;
  m.flags = sources;
  m.request = journal_->at(record).request.load(std::memory_order_relaxed);
  m.slot = record;
  m.pos = journal_->known(record);
  m.key = count;
  // A full ring is that of a speculator which does not run.
  if (!to_speculator_.publish(m)) return;
  s.asked_pos = m.pos;
  s.asked_ns = shm::monotonic_now();
}

/// Drafts that the rest of the answer has room for behind a token that is drawn anyway.
std::uint32_t Drafts::wanted_room(std::uint32_t record) const {
  const std::uint32_t length = journal_->committed(record).length,
                      most = journal_->at(record).params.max_tokens;
  return most > length ? most - length - 1 : 0;
}

void Drafts::committed(std::uint32_t record, bool alone) {
  if (!on_) return;
  for (const DraftSource s : kAllSources) judge(record, s);
  if (!alone || journal_->finished(record) || wanted_room(record) == 0) return;
  if (offer(record).count > 0 || !speculator_runs()) return;
  const DraftControl::Wish match = control_.wish(record, DraftSource::kShortMatch);
  const DraftControl::Wish made = asks_maker_ != 0 ? control_.wish(record, maker_) : DraftControl::Wish{};
  const auto sources =
      static_cast<std::uint8_t>((match.count > 0 ? ring::kAskMatch : 0) | (made.count > 0 ? asks_maker_ : 0));
  if (sources == 0) return;
  ask(record, sources, made.count > 0 ? made.count : match.count);
  waiting_ = record;
  waits_since_ns_ = shm::monotonic_now();
  waits_until_ns_ = waits_since_ns_ + std::max(match.patience_ns, made.patience_ns);
}

bool Drafts::waits() {
  if (waiting_ == UINT32_MAX) return false;
  const std::uint64_t now = shm::monotonic_now();
  const bool over = now >= waits_until_ns_ || !speculator_runs() || !journal_->in_use(waiting_) ||
                    journal_->finished(waiting_);
  if (!over) return true;
  waited_ns_ += now - waits_since_ns_;
  waiting_ = UINT32_MAX;
  return false;
}

std::uint64_t Drafts::remaining_ns() const {
  const std::uint64_t now = shm::monotonic_now();
  return waits_until_ns_ > now ? waits_until_ns_ - now : 0;
}

// --- steps ---

DraftControl::Offer Drafts::offer(std::uint32_t record) const {
  DraftControl::Offer best;
  double most = 0;
  for (const DraftSource source : kAllSources) {
    const Message& m = sequences_[record].from[static_cast<std::size_t>(source)];
    if (m.count <= m.judged || m.pos + m.judged != journal_->known(record)) continue;
    const std::uint32_t count = std::min({m.count - m.judged, ring::kMostDrafted, wanted_room(record)});
    double tokens = 0, stands = 1;
    for (std::uint32_t d = 0; d < count; ++d)
      tokens += stands *= control_.chance(record, source, m.judged + d);
    if (tokens <= most) continue;
    most = tokens;
    best = {record, source, m.judged, count};
  }
  return best;
}

std::uint32_t Drafts::add_to(BatchPlanner& planner, std::span<const PlannedRows> rows) {
  step_ = {};
  if (!on_) return 0;
  offers_.clear();
  step_.decode = true;
  step_.sequences = static_cast<std::uint32_t>(rows.size());
  step_.waited_ns = std::exchange(waited_ns_, 0);
  for (const PlannedRows& p : rows) step_.decode = step_.decode && planner.decodes(p);
  if (!step_.decode) return 0;
  for (const PlannedRows& p : rows)
    if (const DraftControl::Offer o = offer(p.record); o.count > 0) offers_.push_back(o);
  if (offers_.empty()) return 0;
  const std::span<const std::uint32_t> counts =
      control_.choose(step_.sequences, offers_, std::min(ring::kMostDraftedInStep, planner.room()));
  for (std::size_t i = 0; i < offers_.size(); ++i) {
    if (counts[i] == 0) continue;
    const DraftControl::Offer& o = offers_[i];
    const Message& m = sequences_[o.record].from[static_cast<std::size_t>(o.source)];
    planner.add_drafts(o.record, std::span(m.ids).subspan(o.at, counts[i]));
    step_.drafts += counts[i];
  }
  return step_.drafts;
}

void Drafts::published(std::span<const PlannedRows> rows) {
  if (!on_ || !step_.decode || !speculator_runs()) return;
  // Several sequences never wait for drafts: where a number of them is demanded, they come beside the step.
  const bool beside = spare_core_ || (control_.fixed() > 0 && rows.size() > 1);
  for (const PlannedRows& p : rows) {
    const std::uint32_t token = journal_->committed(p.record).length;
    if (wanted_room(p.record) <= p.drafts) continue;
    std::uint8_t sources = 0;
    if (control_.worth_asking(p.record, DraftSource::kShortMatch, token, true)) sources |= ring::kAskMatch;
    if (asks_maker_ != 0 && control_.worth_asking(p.record, maker_, token, beside)) sources |= asks_maker_;
    const bool made = (sources & asks_maker_) != 0;
    ask(p.record, sources, made ? p.drafts + 1 + ring::kMostDrafted / 2 : ring::kLongestDraft);
  }
}

void Drafts::finished(std::uint64_t ns, std::uint32_t tokens) {
  if (!on_ || !step_.decode || ns == 0) return;
  control_.step(step_.sequences, step_.drafts, ns, step_.waited_ns, tokens);
  shm::Desk* desk = ctx_.desk();
  const bool plain = step_.drafts == 0;
  desk->add(plain ? Counter::kPlainSteps : Counter::kDraftSteps);
  desk->add(plain ? Counter::kPlainStepNs : Counter::kDraftStepNs, ns + step_.waited_ns);
  desk->add(plain ? Counter::kPlainTokens : Counter::kDraftTokens, tokens);
  desk->add(Counter::kDraftWaitNs, step_.waited_ns);
  step_ = {};
}

}  // namespace wisp::router
