#pragma once
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "../ring/ring_fixture.hpp"
#include "journal_memory.hpp"
#include "service/stage.hpp"
#include "services/router/router.hpp"

namespace wisp::router::testing {

/// A router that the test drives by hand, with a scripted gateway, speculator and compute. That compute has
/// KV pages of ids: the token after a sequence is a number made of all ids that it finds in the sequence's
/// pages, so that a row that is missing, late or in another's page shows in the answer.
class Rig {
 public:
  static constexpr std::uint32_t kCtx = 2048, kKvPages = 256, kVocab = 50021;

  struct Settings {
    std::uint32_t parallel = 4;
    std::uint32_t chunk = 64;
    bool resident = true;
    std::string speculate = "off";
    bool draft_model = false;
    std::string draft_log = "";
    std::uint32_t logprobs = 0;  ///< room in the journal
  };
  explicit Rig(const Settings& s) : journal_(std::max(16u, 4 * s.parallel), kCtx, s.logprobs) {
    plan().parallel = s.parallel;
    plan().prompt_chunk = s.chunk;
    plan().kv_pages = kKvPages;
    plan().ctx = kCtx;
    plan().profile_hash = journal_.get()->profile_hash;
    plan().expert_extents = 8;
    plan().slots = s.resident ? 8 : 4;
    plan().threads = 1;
    plan().records = std::max(16u, 4 * s.parallel);
    plan().vocab = kVocab;
    plan().options.speculate = s.speculate;
    if (s.draft_model) plan().options.draft = "draft";
    plan().options.draft_log = s.draft_log;
    life_ = static_cast<shm::Life*>(
        ::mmap(nullptr, sizeof(shm::Life), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    life_->gate = ~0ULL;
    speculator_state(shm::StageState::kReady);
    at_.life = life_;
    at_.journal = journal_.get();
    for (const shm::StageId id :
         {shm::StageId::kGateway, shm::StageId::kRouter, shm::StageId::kCompute, shm::StageId::kSpeculator}) {
      desks_.push_back(std::make_unique<wisp::testing::TestDesk>(id, 1 << 20));
      at_.desk[shm::index(id)] = desks_.back()->get();
      bells_.push_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      at_.bell[shm::index(id)] = ring::Doorbell(bells_.back());
    }
    gateway_context_ = std::make_unique<service::StageContext>(at_, shm::StageId::kGateway, 0);
    compute_context_ = std::make_unique<service::StageContext>(at_, shm::StageId::kCompute, 1);
    to_router_ = gateway_context_->producer(shm::EdgeId::kGatewayRouter);
    told_ = gateway_context_->consumer(shm::EdgeId::kRouterGateway);
    steps_ = compute_context_->consumer(shm::EdgeId::kRouterCompute);
    results_ = compute_context_->producer(shm::EdgeId::kComputeRouter);
    speculator_context_ = std::make_unique<service::StageContext>(at_, shm::StageId::kSpeculator, 1);
    asked_ = speculator_context_->consumer(shm::EdgeId::kRouterSpeculator);
    drafts_ = speculator_context_->producer(shm::EdgeId::kSpeculatorRouter);
    start();
  }
  ~Rig() {
    for (const int fd : bells_) ::close(fd);
    ::munmap(life_, sizeof(shm::Life));
  }

  /// The router's next life, on the same regions.
  void start() {
    router_.reset();
    context_ = std::make_unique<service::StageContext>(at_, shm::StageId::kRouter, ++epoch_);
    router_ = std::make_unique<RouterStage>(*context_);
    WISP_CHECK(router_->attach().ok());
  }
  RouterStage& router() { return *router_; }
  service::StageContext& context() { return *context_; }
  shm::Journal& journal() { return *journal_.get(); }
  shm::RouterBoard& board() {
    return *shm::extra_of<shm::RouterBoard>(at_.desk[shm::index(shm::StageId::kRouter)]);
  }

  // the gateway's part
  std::uint64_t submit(const std::vector<std::uint32_t>& prompt, std::uint32_t max_tokens,
                       std::uint32_t logprobs = 0) {
    shm::SubmitMessage m;
    m.params.logprobs = logprobs;
    m.params.prompt_tokens = static_cast<std::uint32_t>(prompt.size());
    m.params.max_tokens = max_tokens;
    std::vector<std::byte> payload(sizeof m + prompt.size() * 4);
    std::memcpy(payload.data(), &m, sizeof m);
    std::memcpy(payload.data() + sizeof m, prompt.data(), prompt.size() * 4);
    ring::Message message;
    message.kind = ring::Kind::kSubmit;
    message.request = ++requests_;
    message.payload = payload;
    WISP_CHECK(to_router_.publish(message));
    return requests_;
  }
  void tell(ring::Kind kind, std::uint64_t request) {
    ring::Message m;
    m.kind = kind;
    m.request = request;
    WISP_CHECK(to_router_.publish(m));
  }
  void hear() {
    while (told_.front() != nullptr) told_.pop();
  }
  const shm::JournalRecord* record(std::uint64_t request) {
    for (std::uint32_t i = 0; i < journal().records; ++i)
      if (journal().record(i)->request.load() == request) return journal().record(i);
    return nullptr;
  }
  shm::CommitWord committed(std::uint64_t request) {
    return shm::CommitWord::unpack(record(request)->commit.load());
  }
  std::vector<std::uint32_t> answer(std::uint64_t request) {
    const shm::JournalRecord* r = record(request);
    const std::uint32_t* first = shm::Journal::ids(r) + r->params.prompt_tokens;
    return {first, first + committed(request).length};
  }

  // compute's part
  struct Part {
    std::uint64_t request;
    std::uint32_t start, count;
    bool sample, prompt;
    std::uint32_t drafts = 0, accepted = 0;
  };
  /// What it tells of a token beside it, and in which way its messages are wrong.
  static std::uint32_t told_word(std::uint32_t token, std::uint32_t place) { return token * 64 + place; }
  enum class Told { kRight, kCut, kTooMany, kOthers };
  Told told = Told::kRight;
  /// Runs the step that lies on edge 3 and publishes its result; false if there is none. parts() says what
  /// it held.
  bool compute() {
    const ring::Descriptor* d = steps_.front();
    if (d == nullptr) return false;
    parts_.clear();
    words_.clear();
    std::span<const std::byte> in = steps_.payload(*d);
    const auto take = [&in](void* to, std::size_t n) {
      WISP_CHECK(n <= in.size());
      std::memcpy(to, in.data(), n);
      in = in.subspan(n);
    };
    ring::StepHeader header;
    take(&header, sizeof header);
    result_.resize(sizeof(ring::StepResultHeader) + header.requests * sizeof(ring::StepResultRow));
    const ring::StepResultHeader out{header.step, header.requests, 0};
    std::memcpy(result_.data(), &out, sizeof out);
    for (std::uint32_t n = 0; n < header.requests; ++n) {
      ring::StepRequest q;
      take(&q, sizeof q);
      std::vector<std::uint32_t> ids(q.count), pages(q.pages);
      take(ids.data(), q.count * std::size_t{4});
      take(pages.data(), q.pages * std::size_t{4});
      if ((q.count + q.pages) % 2 != 0) in = in.subspan(4);
      for (std::uint32_t k = 0; k < q.count; ++k)
        kv_[pages[(q.start + k) / 16] * 16 + (q.start + k) % 16] = ids[k];
      ring::StepResultRow row;
      row.request = q.request;
      row.record = q.record;
      row.start = q.start;
      row.count = q.count;
      row.drafts = q.drafts;
      row.logprobs = q.params.logprobs;
      const std::uint32_t certain = q.start + q.count - q.drafts;
      std::vector<std::uint32_t> all;
      for (std::uint32_t p = 0; p < certain; ++p) all.push_back(kv_[pages[p / 16] * 16 + p % 16]);
      for (std::uint32_t t = 0; q.sample != 0 && t <= q.drafts; ++t) {
        row.tokens[row.sampled++] = next_token(all);
        if (t == q.drafts || ids[q.count - q.drafts + t] != row.tokens[t]) break;
        all.push_back(row.tokens[t]);
      }
      const std::uint32_t accepted = row.sampled > 0 ? row.sampled - 1 : 0;
      row.count = q.count - q.drafts + accepted;
      for (std::uint32_t t = 0; t < row.sampled; ++t)
        for (std::uint32_t w = 0; w < shm::logprob_words(row.logprobs); ++w)
          words_.push_back(told_word(row.tokens[t], w));
      if (told == Told::kTooMany) row.logprobs = 2 + shm::kMostTopLogprobs;
      if (told == Told::kOthers) --row.logprobs;
      std::memcpy(result_.data() + sizeof out + n * sizeof row, &row, sizeof row);
      parts_.push_back(
          {q.request, q.start, q.count, q.sample != 0, q.start < q.params.prompt_tokens, q.drafts, accepted});
    }
    WISP_CHECK(in.empty());
    if (told == Told::kCut) words_.pop_back();
    const auto tail = std::as_bytes(std::span(words_));
    result_.insert(result_.end(), tail.begin(), tail.end());
    ring::Message m;
    m.kind = ring::Kind::kStepResult;
    m.aux = header.step;
    m.payload = result_;
    WISP_CHECK(results_.publish(m));
    steps_.pop();
    return true;
  }
  const std::vector<Part>& parts() const { return parts_; }

  // the speculator's part
  struct Question {
    std::uint64_t request;
    std::uint32_t record, pos, count;
    std::uint8_t sources;
  };
  /// What the router asked since the last call.
  std::vector<Question> questions() {
    std::vector<Question> all;
    for (; const ring::Descriptor* d = asked_.front(); asked_.pop())
      all.push_back({d->request, d->slot, d->pos, d->key, d->flags});
    return all;
  }
  void say(const ring::Message& m) { WISP_CHECK(drafts_.publish(m)); }
  /// Drafts for `q`: the first `right` of them are what will come.
  void answer(const Question& q, DraftSource source, std::uint32_t count, std::uint32_t right) {
    const shm::JournalRecord* r = record(q.request);
    if (r == nullptr) return;
    const std::uint32_t* first = shm::Journal::ids(r);
    std::vector<std::uint32_t> ids = expected({first, first + q.pos}, count);
    for (std::uint32_t i = right; i < count; ++i) ids[i] = (ids[i] + 1) % kVocab;
    ring::Message m;
    m.kind = ring::Kind::kDraft;
    m.flags = static_cast<std::uint8_t>(source) | ring::kLastDraft;
    m.request = q.request;
    m.slot = q.record;
    m.pos = q.pos;
    m.payload = std::as_bytes(std::span(ids));
    say(m);
  }
  void speculator_state(shm::StageState s) {
    life_->stage[shm::index(shm::StageId::kSpeculator)].state = static_cast<std::uint32_t>(s);
  }
  std::uint64_t counter(stats::Counter c) { return at_.desk[shm::index(shm::StageId::kRouter)]->get(c); }
  /// What the scripted model says after `ids`.
  static std::uint32_t next_token(const std::vector<std::uint32_t>& ids) {
    std::uint64_t h = 1469598103934665603ULL;
    for (const std::uint32_t id : ids) h = (h ^ id) * 1099511628211ULL;
    return static_cast<std::uint32_t>(h >> 20) % kVocab;
  }
  static std::vector<std::uint32_t> expected(std::vector<std::uint32_t> ids, std::uint32_t n) {
    std::vector<std::uint32_t> out;
    for (std::uint32_t t = 0; t < n; ++t) {
      out.push_back(next_token(ids));
      ids.push_back(out.back());
    }
    return out;
  }

 private:
  plan::RunPlan& plan() { return at_.plan; }

  JournalMemory journal_;
  service::Attachment at_;
  shm::Life* life_ = nullptr;
  std::vector<std::unique_ptr<wisp::testing::TestDesk>> desks_;
  std::vector<int> bells_;
  std::unique_ptr<service::StageContext> context_, gateway_context_, compute_context_, speculator_context_;
  std::unique_ptr<RouterStage> router_;
  ring::Producer to_router_, results_, drafts_;
  ring::Consumer told_, steps_, asked_;
  std::uint32_t epoch_ = 0;
  std::uint64_t requests_ = 0;
  std::vector<std::uint32_t> kv_ = std::vector<std::uint32_t>(kKvPages * 16);
  std::vector<std::byte> result_;
  std::vector<std::uint32_t> words_;
  std::vector<Part> parts_;
};

}  // namespace wisp::router::testing
