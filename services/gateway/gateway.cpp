#include "services/gateway/gateway.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <system_error>

#include "service/crash_point.hpp"

namespace wisp::gateway {

using ring::Kind;
using shm::EdgeId;
using shm::Finish;
using stats::Counter;

namespace {
constexpr std::size_t kBatchBytes = 16 * 1024;
constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kProgressNs = 200 * kMillisecond;
/// Monotonic, not engine time: a run held by a debugger is when proxies need to hear that somebody is there.
constexpr std::uint64_t kKeepAliveNs = 10'000 * kMillisecond;

bool half_event_armed() {
  const service::detail::Armed* a = service::detail::armed;
  return a != nullptr && a->point.load(std::memory_order_relaxed) ==
                             static_cast<std::uint32_t>(service::CrashPoint::kSseHalf);
}
}  // namespace

Gateway::Gateway(service::StageContext& ctx, const text::TemplateHelper::Options& helper)
    : ctx_(ctx),
      prompts_(helper),
      journal_(ctx.at().journal),
      outbox_(ctx.producer(EdgeId::kGatewayRouter),
              ctx.desk()->edges[shm::index(EdgeId::kGatewayRouter)].arena_size),
      from_router_(ctx.consumer(EdgeId::kRouterGateway)),
      stages_(ctx.life()) {}

Status Gateway::load() {
  const std::string& folder = ctx_.plan().options.model;
  WISP_ASSIGN(manifest_, model::load_manifest(folder));
  WISP_TRY(prompts_.load(folder, max_positions()));
  try {
    worker_.emplace(prompts_, [this] { ctx_.bell(ctx_.id()).ring(); });
  } catch (const std::system_error& e) {
    return io_error(std::string("the thread that makes prompts: ") + e.what());
  }
  struct stat st {};
  if (::stat((folder + "/manifest.json").c_str(), &st) == 0)
    model_created_s_ = static_cast<std::uint64_t>(st.st_mtime);
  return {};
}

// --- the stage's turn ---

bool Gateway::pump() {
  bool worked = outbox_.flush();
  // Messages of edge 2 are hints: the truth is read from the journal below.
  while (from_router_.front() != nullptr) {
    from_router_.pop();
    worked = true;
  }
  worked |= watch_stages();
  worked |= submit_made();
  // advance() may end an answer, never open or erase one.
  for (auto& [request, open] : open_) worked |= advance(open);
  worked |= retire_finished();
  worked |= outbox_.flush();
  return worked;
}

bool Gateway::has_work() const {
  if (from_router_.front() != nullptr || outbox_.can_flush() || worker_->has_made()) return true;
  for (const auto& [request, open] : open_)
    if (!open.ended && open.client->idle_writer() && open.answer.has_news(journal_)) return true;
  return false;
}

std::uint64_t Gateway::patience_ns() const {
  // The router rings for tokens, not for a cancelled record, nor while a prompt advances.
  if (!closing_.empty()) return 20 * kMillisecond;
  return open_.empty() ? 1000 * kMillisecond : kProgressNs;
}

bool Gateway::watch_stages() {
  const std::string lines = stages_.changes();
  if (!lines.empty())
    for (auto& [request, open] : open_)
      if (open.notices.size() < 4096) open.notices += lines;
  const auto why = stages_.given_up();
  if (!why) return !lines.empty();
  bool worked = !lines.empty();
  for (auto& [request, open] : open_)
    worked |= !open.ended && open.client->idle_writer() && end_with(open, {503, *why, "", "unavailable", 0});
  return worked;
}

// --- one answer ---

bool Gateway::advance(Open& open) {
  if (open.ended || !open.client->idle_writer()) return false;
  if (open.answer.streams() && !open.head_sent) return write_head(open);
  std::string out;
  const auto step = open.answer.advance(journal_, half_event_armed() ? 1 : kBatchBytes, out);
  return write_step(open, step, std::move(out));
}

bool Gateway::write_head(Open& open) {
  const std::uint64_t request = open.answer.request();
  // Once the client knows the id, it may resume: the request must then outlive this process.
  if (!outbox_.submitted(request)) return false;
  open.head_sent = true;
  open.sent_ns = shm::monotonic_now();
  open.client->begin_stream("X-Wisp-Request: " + std::to_string(request) + "\r\n");
  return true;
}

bool Gateway::write_step(Open& open, Answer::Step step, std::string out) {
  using Step = Answer::Step;
  const std::uint64_t request = open.answer.request();
  switch (step) {
    case Step::kUnopened:
      // The router opens a record before it moves on, so one that is in neither place was refused or has
      // expired.
      if (outbox_.carries(request, Kind::kSubmit) || journal_.find(request)) return write_comment(open);
      return end_with(open,
                      {500, "the request was not taken up by the router; its log says why", "", "lost", 0});
    case Step::kLost:
      return end_with(open, {500, "the record of this request is gone; send it again", "", "gone", 0});
    case Step::kFailed:
      return end_with(open, open.answer.error());
    case Step::kNothing:
      return write_comment(open);
    case Step::kBytes:
      if (open.answer.streams()) return send(open, out, false);
      return false;
    case Step::kEnd:
      break;
  }
  if (open.answer.stopped()) outbox_.tell(Kind::kFinishAt, request, open.answer.tokens());
  if (open.answer.streams()) return send(open, out, true);
  open.ended = true;
  open.client->reply({200, std::move(out), "X-Wisp-Request: " + std::to_string(request) + "\r\n"});
  return true;
}

bool Gateway::send(Open& open, const std::string& text, bool last) {
  const std::string all = std::exchange(open.notices, {}) + text;
  open.sent_ns = shm::monotonic_now();
  open.ended = last;
  open.client->send(all, last, half_event_armed() ? all.size() - text.size() / 2 : 0);
  return true;
}

bool Gateway::write_comment(Open& open) {
  if (!open.answer.streams() || !open.head_sent) return false;
  const std::uint64_t now = shm::monotonic_now();
  std::string text;
  const std::uint32_t kv = std::min(open.answer.kv_len(), open.answer.prompt_tokens());
  if (open.answer.tokens() == 0 && kv > open.shown_kv && now >= open.sent_ns + kProgressNs) {
    text = ": prompt " + std::to_string(kv) + "/" + std::to_string(open.answer.prompt_tokens()) + "\n\n";
    open.shown_kv = kv;
  }
  if (text.empty() && now >= open.sent_ns + kKeepAliveNs) text = ": keep-alive\n\n";
  if (text.empty() && open.notices.empty()) return false;
  open.sent_ns = now;
  open.client->send(std::exchange(open.notices, {}) + text, false);
  return true;
}

bool Gateway::end_with(Open& open, const ApiError& error) {
  const std::uint64_t request = open.answer.request();
  if (!outbox_.withdraw(request)) outbox_.tell(Kind::kCancel, request);
  ctx_.desk()->add(Counter::kHttpErrors);
  open.ended = true;
  if (open.head_sent) {
    std::string out;
    open.answer.fail(error, out);
    return send(open, out, true);
  }
  const std::string retry = error.status == 503 ? "Retry-After: 5\r\n" : "";
  open.client->reply(
      {error.status, error_body(error), "X-Wisp-Request: " + std::to_string(request) + "\r\n" + retry});
  return true;
}

// --- ends ---

void Gateway::on_writable(Session& session) {
  const auto it = open_.find(session.tag);
  if (it != open_.end() && it->second.client.get() == &session) (void)advance(it->second);
}

void Gateway::on_answered(Session& session) {
  const auto it = open_.find(session.tag);
  if (it == open_.end() || it->second.client.get() != &session) return;
  open_.erase(it);
  retire(session.tag, false);
}

void Gateway::on_gone(Session& session) {
  if (session.tag == 0) {
    std::erase_if(waiting_, [&](const auto& w) {
      if (w.second.client.get() != &session) return false;
      worker_->forget(w.first);
      return true;
    });
    return;
  }
  const auto it = open_.find(session.tag);
  if (it == open_.end() || it->second.client.get() != &session) return;
  open_.erase(it);
  retire(session.tag, true);
}

void Gateway::retire(std::uint64_t request, bool cancel) {
  if (outbox_.withdraw(request)) return;
  if (cancel) outbox_.tell(Kind::kCancel, request);
  closing_.push_back(request);
  outbox_.flush();
}

bool Gateway::retire_finished() {
  const std::size_t n = std::erase_if(closing_, [this](std::uint64_t request) {
    // In this order: a record is opened before the message that opens it counts as read.
    const bool carried = outbox_.carries(request);
    const auto record = journal_.find(request);
    const auto state = record ? journal_.state(*record, request) : std::nullopt;
    if (!state) return !carried;
    if (state->commit.finish == Finish::kNone || carried) return false;
    outbox_.tell(Kind::kAcknowledge, request);
    return true;
  });
  return n != 0;
}

}  // namespace wisp::gateway
