#include "services/speculator/speculator.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "services/speculator/draft_model.hpp"
#include "services/speculator/head_source.hpp"

namespace wisp::speculator {

using shm::EdgeId;
using stats::Counter;

namespace {
/// The flags of a message.
constexpr std::uint8_t flags(ring::DraftSource source, bool last) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(source) | (last ? ring::kLastDraft : 0u));
}

/// Nanoseconds that this thread has computed.
std::uint64_t cpu_now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(t.tv_nsec);
}

/// What kSourceVariable leaves of the sources. Errors: kInvalid where it names none.
Result<std::uint8_t> answering_sources() {
  const char* const name = std::getenv(kSourceVariable);
  const std::string_view source = name == nullptr ? "" : name;
  constexpr std::uint8_t kMade = ring::kAskModel | ring::kAskHead;
  if (source == "model") return kMade;
  if (source == "match") return ring::kAskMatch;
  if (source.empty()) return static_cast<std::uint8_t>(ring::kAskMatch | kMade);
  return invalid(std::string(kSourceVariable) + "=" + std::string(source) +
                 ": no source of drafts; leave it out, or say model or match");
}
}  // namespace

SpeculatorStage::SpeculatorStage(service::StageContext& ctx, Maker maker, std::optional<Script> script,
                                 std::uint8_t sources)
    : ctx_(ctx),
      journal_(ctx.at().journal),
      from_router_(ctx.consumer(EdgeId::kRouterSpeculator)),
      to_router_(ctx.producer(EdgeId::kSpeculatorRouter)),
      lookup_(ctx.plan().records, ctx.plan().ctx),
      maker_(std::move(maker)),
      asks_maker_(maker_.kind == ring::DraftSource::kHead ? ring::kAskHead : ring::kAskModel),
      script_(std::move(script)),
      sources_(sources),
      questions_(ctx.plan().records),
      texts_(ctx.plan().records) {
  drafts_.resize(ring::kLongestDraft);
}

Result<std::unique_ptr<service::Stage>> make_speculator(service::StageContext& ctx) {
  SpeculatorStage::Maker maker;
  std::optional<Script> script;
  std::uint8_t sources = 0;
  if (ctx.plan().options.speculate != "off") {
    if (!ctx.plan().options.draft.empty()) {
      WISP_ASSIGN(maker.source, DraftModel::open(ctx.plan(), ctx.plan().vocab));
    } else if (ctx.plan().head_bytes != 0) {
      WISP_ASSIGN(maker.source, HeadSource::open(ctx.at()));
      maker.kind = ring::DraftSource::kHead;
    }
    const char* const path = std::getenv(kScriptVariable);
    if (path != nullptr && *path != '\0') {
      WISP_ASSIGN(script, Script::load(path, ctx.plan().vocab));
    }
    WISP_ASSIGN(sources, answering_sources());
  }
  return std::unique_ptr<service::Stage>(
      std::make_unique<SpeculatorStage>(ctx, std::move(maker), std::move(script), sources));
}

bool SpeculatorStage::has_work() {
  return open_ > 0 || !from_router_.empty();
}

bool SpeculatorStage::poll() {
  take_questions();
  if (open_ == 0) return false;
  for (std::uint32_t i = 0; i < questions_.size(); ++i)
    if (questions_[i].request != 0) answer(i);
  // Questions about others may have come meanwhile; whoever waits in a long catching-up goes on after them.
  return true;
}

void SpeculatorStage::take_questions() {
  bool any = false;
  while (const ring::Descriptor* d = from_router_.front()) {
    if (d->kind == ring::Kind::kDraftWanted && d->slot < questions_.size() && d->request != 0) {
      Question& q = questions_[d->slot];
      open_ += q.request == 0 ? 1 : 0;
      q = {d->request, d->pos, std::min(d->key, ring::kLongestDraft), d->flags};
    }
    from_router_.pop();
    service::crash_point(service::CrashPoint::kQuestionTaken);
    any = true;
  }
  if (any) forget_ended();
}

void SpeculatorStage::forget_ended() {
  for (std::uint32_t i = 0; i < texts_.size(); ++i) {
    Text& t = texts_[i];
    if (t.request == 0 || journal_.request(i) == t.request) continue;
    t = {};
    lookup_.forget(i);
    if (maker_.source) maker_.source->forget(i);
  }
}

bool SpeculatorStage::read(std::uint32_t record, std::uint64_t request) {
  Text& t = texts_[record];
  const auto s = journal_.state(record, request);
  if (!s || s->commit.finish != shm::Finish::kNone) return false;
  if (t.request != request || s->length() < t.ids.size()) {
    t.ids.clear();
    t.ids.reserve(
        std::min<std::uint64_t>(std::uint64_t{s->prompt_tokens} + s->max_tokens, journal_.capacity()));
    t.request = request;
  }
  const std::size_t known = t.ids.size();
  t.ids.resize(s->length());
  if (journal_.ids(record, request, known, std::span(t.ids).subspan(known))) return true;
  t = {};
  return false;
}

void SpeculatorStage::answer(std::uint32_t record) {
  Question q = questions_[record];
  questions_[record] = {};
  --open_;
  if (!read(record, q.request)) return;
  q.pos = static_cast<std::uint32_t>(texts_[record].ids.size());
  if (script_) return answer_by_script(record, q);
  q.sources &= sources_;
  const bool made = (q.sources & asks_maker_) != 0 && maker_.source;
  const bool match = (q.sources & ring::kAskMatch) != 0;
  // Whoever waits is told that nothing comes.
  if (!match && !made) return send(q, record, flags(ring::DraftSource::kShortMatch, true), 0, 0);
  if (match) {
    const std::uint64_t begin = cpu_now();
    const std::uint32_t n = lookup_.propose(record, q.request, texts_[record].ids, drafts_);
    const auto source = lookup_.matched() >= PromptLookup::kLong ? ring::DraftSource::kLongMatch
                                                                 : ring::DraftSource::kShortMatch;
    send(q, record, flags(source, !made), n, cpu_now() - begin);
  }
  if (made) answer_by_maker(record, q);
}

void SpeculatorStage::answer_by_maker(std::uint32_t record, const Question& q) {
  const std::uint64_t begin = cpu_now();
  const std::uint32_t n =
      maker_.source->propose(record, q.request, texts_[record].ids,
                             std::span(drafts_).first(std::min<std::size_t>(q.count, drafts_.size())));
  const std::uint64_t took = cpu_now() - begin;
  ctx_.desk()->add(Counter::kDraftingNs, took);
  send(q, record, flags(maker_.kind, true), n, took);
  // A long prompt is read on between other questions; what comes of it is too late for this one.
  if (!maker_.source->has_more(record) || questions_[record].request != 0) return;
  questions_[record] = q;
  questions_[record].sources = asks_maker_;
  ++open_;
}

void SpeculatorStage::answer_by_script(std::uint32_t record, const Question& q) {
  if (script_->nonsense()) send_nonsense(q, record);
  const std::uint32_t n = script_->propose(record, q.request, texts_[record].ids, drafts_);
  send(q, record, flags(ring::DraftSource::kLongMatch, true), n, 0);
}

void SpeculatorStage::send(const Question& q, std::uint32_t record, std::uint8_t flags, std::uint32_t count,
                           std::uint64_t cpu_ns) {
  ring::Message m;
  m.kind = ring::Kind::kDraft;
  m.flags = flags;
  m.request = q.request;
  m.slot = record;
  m.pos = q.pos;
  m.aux = cpu_ns;
  m.payload = std::as_bytes(std::span(drafts_).first(count));
  service::crash_point(service::CrashPoint::kDraftsUnsent);
  if (to_router_.publish(m)) ctx_.desk()->add(Counter::kDraftMessages);
}

/// Of every kind that a broken speculator could send.
void SpeculatorStage::send_nonsense(const Question& q, std::uint32_t record) {
  const auto any = [this] { return script_->arbitrary(); };
  for (int n = 0; n < 3; ++n) {
    ring::Message m;
    m.kind = any() % 4 == 0 ? static_cast<ring::Kind>(any() % 32) : ring::Kind::kDraft;
    m.flags = static_cast<std::uint8_t>(any());
    m.request = any() % 2 == 0 ? q.request : any();
    m.slot = any() % 2 == 0 ? record : static_cast<std::uint32_t>(any());
    m.pos = any() % 2 == 0 ? q.pos + static_cast<std::uint32_t>(any() % 5) - 2
                           : static_cast<std::uint32_t>(any());
    m.aux = any();
    for (std::uint32_t& id : drafts_) id = static_cast<std::uint32_t>(any());
    const std::span<const std::byte> bytes = std::as_bytes(std::span(drafts_));
    m.payload = bytes.first(any() % (bytes.size() + 1));
    to_router_.publish(m);
  }
}

}  // namespace wisp::speculator
