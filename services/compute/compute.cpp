#include "services/compute/compute.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.hpp"
#include "plan/cpus.hpp"
#include "wisp/kernels/naive.hpp"

namespace wisp::compute {

using shm::StageId;
using shm::WaitFor;
using stats::Counter;

namespace {
/// A few times what it takes to wake the router and have its answer.
constexpr std::uint64_t kSpinNs = 200'000;

/// The folder that the file system of `path` is mounted at; `path`, which is absolute, where it is not there.
std::string mount_of(std::string path) {
  struct stat here {
  }, above{};
  if (::stat(path.c_str(), &here) != 0) return path;
  while (path.size() > 1) {
    std::string parent = path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
    if (::stat(parent.c_str(), &above) != 0 || above.st_dev != here.st_dev) break;
    path = std::move(parent);
  }
  return path;
}
}  // namespace

ComputeStage::ComputeStage(service::StageContext& ctx, model::Manifest manifest)
    : ctx_(ctx),
      manifest_(std::move(manifest)),
      router_board_(shm::extra_of<shm::RouterBoard>(ctx.peer(StageId::kRouter))),
      from_router_(ctx.consumer(shm::EdgeId::kRouterCompute)),
      to_router_(ctx.producer(shm::EdgeId::kComputeRouter)),
      experts_(ctx),
      memory_(ctx),
      pool_(ctx.plan().threads, ctx.plan().threads <= plan::usable_cores()),
      looks_(plan::usable_cores() > 1),
      journal_(ctx.at().journal) {}

Result<std::unique_ptr<service::Stage>> make_compute(service::StageContext& ctx) {
  if (std::string wrong = kernels::isa_refusal(); !wrong.empty()) return invalid(std::move(wrong));
  WISP_ASSIGN(model::Manifest manifest, model::load_manifest(ctx.plan().options.model));
  const std::uint64_t page = manifest.spec.kv_page_bytes(ctx.plan().kv_format) + ctx.plan().hidden_page_bytes;
  if (ctx.plan().kv_page_bytes != page || ctx.plan().dense_bytes != manifest.dense_bytes ||
      (manifest.spec.expert_count() != 0 && ctx.plan().stride != manifest.spec.expert.stride))
    return invalid("model " + manifest.name + " is not the one this run was planned for; it changed on disk");
  return std::unique_ptr<service::Stage>(std::make_unique<ComputeStage>(ctx, std::move(manifest)));
}

bool ComputeStage::has_work() {
  return !from_router_.empty();
}

void ComputeStage::sleep(service::StageContext& ctx) {
  // While the router plans there is nothing else to do, and the next step mostly comes at once.
  const auto ready = [this] { return has_work(); };
  if (looks_ && service::StageContext::spin(kSpinNs, ready)) return;
  experts_.wake_loader();
  while (memory_.step()) {
    ctx.poll_control();
    if (has_work()) return;
  }
  ctx.sleep(WaitFor::kWork, 0, ready);
}

void ComputeStage::make_ready() {
  if (forward_) return;
  const slab::SlabDir* dir = ctx_.at().slab_dir;
  const auto dense_ready = [dir] { return dir->dense_ready.load(std::memory_order_seq_cst) != 0; };
  while (!dense_ready())
    if (!memory_.step()) ctx_.sleep(WaitFor::kDense, 0, dense_ready);
  auto weights = Weights::bind(manifest_, ctx_.at().dense, ctx_.plan().dense_bytes);
  if (!weights.ok()) ctx_.give_up(weights.error());
  weights_ = std::move(weights).value();
  shm::Kv* kv = ctx_.at().kv;
  const bool hidden = ctx_.plan().hidden_page_bytes != 0;
  const KvPages pages{reinterpret_cast<std::byte*>(kv) + kv->pages_offset, kv->page_bytes,
                      ctx_.plan().kv_format, hidden ? ctx_.plan().hidden_at() : 0};
  const kernels::Kernels& table = kernels::best_kernels();
  forward_ = std::make_unique<Forward>(manifest_.spec, weights_, pages, table, pool_,
                                       ctx_.plan().prompt_chunk + ctx_.plan().parallel, ctx_.plan().ctx,
                                       ctx_.plan().profile == "fast");
  const std::uint32_t parallel = ctx_.plan().parallel;
  forward_->reserve_logits(parallel + ring::kMostDraftedInStep);
  sampler_.reserve(manifest_.spec.vocab);
  penalties_.reserve(manifest_.spec.vocab, ctx_.plan().ctx);
  plan_.parts.reserve(parallel);
  sequences_.reserve(parallel);
  valid_.reserve(parallel);
  accepted_.reserve(parallel);
  const std::uint64_t told = ring::most_told_bytes(parallel, ctx_.plan().options.logprobs);
  result_.reserve(sizeof(ring::StepResultHeader) + parallel * sizeof(ring::StepResultRow) + told);
  told_.reserve(told / sizeof(std::uint32_t));
  if (told != 0) logprobs_.reserve(manifest_.spec.vocab);
  spdlog::info("kernels: {}, {} threads", kernels::name_of(table.isa), pool_.threads());
}

bool ComputeStage::poll() {
  const ring::Descriptor* d = from_router_.front();
  if (d == nullptr) return false;
  if (decode(*d, plan_)) {
    make_ready();
    run_step(plan_);
  } else {
    spdlog::error("edge 3: step {} is malformed and dropped", d->aux);
  }
  from_router_.pop();
  // After the head has moved: a router that attaches meanwhile plans when the step is out of the ring.
  to_router_.ring_peer();
  return true;
}

bool ComputeStage::decode(const ring::Descriptor& d, Plan& plan) const {
  plan.parts.clear();
  std::span<const std::byte> in = from_router_.payload(d);
  const auto take = [&in](void* out, std::size_t n) {
    if (in.size() < n) return false;
    std::memcpy(out, in.data(), n);
    in = in.subspan(n);
    return true;
  };
  const auto words = [&in](std::size_t n) {
    const std::span<const std::uint32_t> s{reinterpret_cast<const std::uint32_t*>(in.data()), n};
    in = in.subspan(n * sizeof(std::uint32_t));
    return s;
  };
  if (d.kind != ring::Kind::kStep || !take(&plan.header, sizeof plan.header)) return false;
  std::uint64_t rows = 0, drafts = 0;
  for (std::uint32_t i = 0; i < plan.header.requests; ++i) {
    Plan::Part part;
    if (!take(&part.request, sizeof part.request)) return false;
    const ring::StepRequest& q = part.request;
    const std::uint64_t padded = (std::uint64_t{q.count} + q.pages + 1) / 2 * 2;
    if (q.count == 0 || padded > in.size() / sizeof(std::uint32_t)) return false;
    if (q.drafts >= q.count || q.drafts > ring::kMostDrafted || (q.drafts > 0 && q.sample == 0)) return false;
    if (q.params.logprobs > ctx_.plan().options.logprobs) return false;
    if (q.record >= ctx_.plan().records || std::uint64_t{q.start} + q.count > ctx_.plan().ctx) return false;
    if (std::uint64_t{q.pages} * kernels::kPageTokens < std::uint64_t{q.start} + q.count) return false;
    part.ids = words(q.count);
    part.pages = words(q.pages);
    if ((q.count + q.pages) % 2 != 0) words(1);
    for (const std::uint32_t p : part.pages)
      if (p >= ctx_.at().kv->pages) return false;
    rows += q.count;
    drafts += q.drafts;
    plan.parts.push_back(part);
  }
  if (drafts > ring::kMostDraftedInStep) return false;
  if (rows > ctx_.plan().prompt_chunk + ctx_.plan().parallel) return false;
  return true;
}

bool ComputeStage::all_cancelled(const Plan& plan) const {
  for (const Plan::Part& p : plan.parts)
    if (router_board_->cancel[p.request.record].load(std::memory_order_acquire) != p.request.request)
      return false;
  return true;
}

void ComputeStage::run_step(const Plan& plan) {
  for (const Plan::Part& p : plan.parts) memory_.need_kv(p.pages);
  times_.begin(forward_->spans());
  pool_.wake();
  sequences_.clear();
  for (const Plan::Part& p : plan.parts) {
    Sequence s{p.ids, p.pages, p.request.start, p.request.sample != 0 ? Logits::kLastRow : Logits::kNone, {}};
    s.drafts = p.request.drafts;
    // By the prompt's length as the journal has it: a request that is taken up again gets the same forms.
    if (ctx_.plan().naive_prefill) s.naive_until = kernels::naive_positions(p.request.params.prompt_tokens);
    for (const std::uint32_t id : p.ids)
      if (id >= manifest_.spec.vocab && s.error.empty())
        s.error = "token id " + std::to_string(id) + " is not below the vocabulary of " +
                  std::to_string(manifest_.spec.vocab);
    sequences_.push_back(std::move(s));
  }
  // A sequence with an impossible id computes nothing: its rows would read outside the embedding.
  valid_.clear();
  for (const Sequence& s : sequences_)
    if (s.error.empty()) valid_.push_back(s);
  experts_.begin_step(plan.header.step);
  if (experts_.traced()) name_rows(plan);
  bool completed = true;
  if (!valid_.empty()) completed = forward_->run(valid_, experts_, [&] { return all_cancelled(plan); });
  pool_.rest();
  experts_.end_step();
  accepted_.assign(valid_.size(), 0);
  for (std::size_t i = 0, v = 0; i < sequences_.size(); ++i)
    if (sequences_[i].error.empty()) {
      sequences_[i].draft_failed = valid_[v].draft_failed;
      sequences_[i].error = valid_[v++].error;
    }
  ctx_.desk()->add(Counter::kSteps);
  publish_result(plan, completed);
  if (completed) forward_->keep_drafts(valid_, accepted_, experts_);
  bool decode = true;
  for (const Sequence& s : sequences_) decode = decode && s.ids.size() == 1 + std::size_t{s.drafts};
  times_.end(ctx_.desk(), decode, forward_->spans(), experts_.slept_ticks(), pool_.waited_ticks());
}

/// In the order in which the forward pass has them.
void ComputeStage::name_rows(const Plan& plan) {
  named_rows_.clear();
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    if (!sequences_[i].error.empty()) continue;
    const ring::StepRequest& q = plan.parts[i].request;
    for (std::uint32_t n = 0; n < q.count; ++n)
      named_rows_.push_back({static_cast<std::uint32_t>(q.request), q.start + n});
  }
  experts_.name_rows(named_rows_);
}

void ComputeStage::publish_result(const Plan& plan, bool completed) {
  result_.resize(sizeof(ring::StepResultHeader) + plan.parts.size() * sizeof(ring::StepResultRow));
  const ring::StepResultHeader header{plan.header.step, static_cast<std::uint32_t>(plan.parts.size()), 0};
  std::memcpy(result_.data(), &header, sizeof header);
  std::size_t computed = 0;
  told_.clear();
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    const ring::StepRequest& q = plan.parts[i].request;
    ring::StepResultRow row;
    row.request = q.request;
    row.record = q.record;
    row.start = q.start;
    row.count = q.count;
    row.drafts = q.drafts;
    row.logprobs = q.params.logprobs;
    std::string error = sequences_[i].error;
    bool in_vocabulary = true;
    for (const std::uint32_t id : sequences_[i].ids)
      in_vocabulary = in_vocabulary && id < manifest_.spec.vocab;
    const std::size_t place = in_vocabulary ? computed++ : 0;
    if (!completed) {
      row.status = ring::RowStatus::kCancelled;
    } else if (error.empty() && q.sample != 0) {
      error = draw(i, place, row);
    }
    if (row.status == ring::RowStatus::kOk && !error.empty()) {
      row.status = ring::RowStatus::kFailed;
      std::strncpy(row.error, error.c_str(), sizeof row.error - 1);
    }
    std::memcpy(result_.data() + sizeof header + i * sizeof row, &row, sizeof row);
  }
  const auto told = std::as_bytes(std::span(told_));
  result_.insert(result_.end(), told.begin(), told.end());
  service::crash_point(service::CrashPoint::kSampled);
  ring::Message m;
  m.kind = ring::Kind::kStepResult;
  m.aux = plan.header.step;
  m.payload = result_;
  // poll() rings once for both, the result and the head behind it: a ring is a system call.
  while (!to_router_.publish(m, false))
    ctx_.sleep(WaitFor::kRingSpace, shm::index(shm::EdgeId::kComputeRouter),
               [&] { return to_router_.has_space(result_.size()); });
}

/// The target's own draw decides at each place, with the number that belongs to that position: so the tokens
/// are those of plain decoding, whatever was guessed.
std::string ComputeStage::draw(std::size_t i, std::size_t place, ring::StepResultRow& row) {
  const Plan::Part& part = plan_.parts[i];
  const ring::StepRequest& q = part.request;
  const std::uint32_t vocab = manifest_.spec.vocab, certain = q.count - q.drafts;
  const std::span<const float> all = forward_->logits(place);
  const bool penalised = q.params.penalises();
  if (penalised && !count_text(q)) {
    row.status = ring::RowStatus::kCancelled;
    return {};
  }
  for (std::uint32_t d = 0; d <= q.drafts; ++d) {
    const std::span<const float> logits = all.subspan(std::size_t{d} * vocab, vocab);
    auto token = sampler_.draw(penalised ? penalties_.apply(logits, q.params) : logits, q.params,
                               q.start + certain + d);
    // What fails behind a draft fails in a plain step after it, where it can be said.
    if (!token.ok() && d > 0) break;
    if (!token.ok()) return token.error().text + " at position " + std::to_string(q.start + certain + d - 1);
    if ((q.params.flags & shm::kWriteLogits) != 0)
      if (std::string error = write_logits(q.request, q.generated + d, logits); !error.empty()) return error;
    row.tokens[row.sampled++] = token.value();
    if (row.logprobs != 0) logprobs_.tell(logits, token.value(), row.logprobs, told_);
    if (d == q.drafts || d >= sequences_[i].draft_failed || part.ids[certain + d] != token.value() ||
        q.params.ends_at(token.value()))
      break;
    if (penalised) penalties_.add(token.value());
  }
  row.count = certain + row.sampled - 1;
  accepted_[place] = row.sampled - 1;
  return {};
}

/// From the journal: a step carries only ids without rows. What it says up to here was committed before the
/// step was planned, and stays while the record is this request's.
bool ComputeStage::count_text(const ring::StepRequest& q) {
  const std::span<std::uint32_t> text = penalties_.text(q.start + q.count - q.drafts);
  if (!journal_.ids(q.record, q.request, 0, text)) return false;
  penalties_.count(q.params.prompt_tokens);
  return true;
}

std::string ComputeStage::write_logits(std::uint64_t request, std::uint32_t row,
                                       std::span<const float> logits) const {
  // Row n always lies at n * V * 4: a repeated step writes the same bytes to the same place.
  const Fd fd(::openat(service::fds::kLogitsDir, std::to_string(request).c_str(),
                       O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  const auto* p = reinterpret_cast<const char*>(logits.data());
  std::size_t left = logits.size_bytes();
  auto at = static_cast<off_t>(row * logits.size_bytes());
  int failed = fd.valid() ? 0 : errno;
  while (failed == 0 && left > 0) {
    const ssize_t n = ::pwrite(fd.get(), p, left, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      failed = n < 0 ? errno : EIO;
      break;
    }
    p += n;
    at += n;
    left -= static_cast<std::size_t>(n);
  }
  if (failed == 0) return {};
  const std::string& folder = ctx_.plan().options.logits_dir;
  return "writing logits to " + folder + " (--logits), on the file system of " + mount_of(folder) + ": " +
         std::strerror(failed);
}

}  // namespace wisp::compute
