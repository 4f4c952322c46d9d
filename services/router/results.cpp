#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "services/router/router.hpp"

/// What compute says of a step, and what becomes of it in the journal.
namespace wisp::router {

using service::crash_point;
using service::CrashPoint;
using shm::Finish;
using stats::Counter;

namespace {
constexpr std::size_t kMostWords =
    (ring::kMostDrafted + 1) * std::size_t{shm::logprob_words(1 + shm::kMostTopLogprobs)};

/// Takes what is told of the row's tokens off the front of `from`, into `words`; nullopt where it cannot be
/// there.
std::optional<std::span<const std::uint32_t>> take_told(const ring::StepResultRow& row,
                                                        std::span<const std::byte>& from,
                                                        std::array<std::uint32_t, kMostWords>& words) {
  if (row.logprobs > 1 + shm::kMostTopLogprobs || row.sampled > ring::kMostDrafted + 1) return std::nullopt;
  const std::size_t count = row.sampled * std::size_t{shm::logprob_words(row.logprobs)};
  if (count > from.size() / sizeof(std::uint32_t)) return std::nullopt;
  std::memcpy(words.data(), from.data(), count * sizeof(std::uint32_t));
  from = from.subspan(count * sizeof(std::uint32_t));
  return std::span<const std::uint32_t>(words).first(count);
}
}  // namespace

bool RouterStage::drain_results() {
  bool worked = false;
  while (const ring::Descriptor* d = from_compute_.front()) {
    const auto payload = from_compute_.payload(*d);
    ring::StepResultHeader header;
    if (d->kind == ring::Kind::kStepResult && payload.size() >= sizeof header) {
      std::memcpy(&header, payload.data(), sizeof header);
      const std::size_t rows = std::min<std::size_t>(
          header.requests, (payload.size() - sizeof header) / sizeof(ring::StepResultRow));
      std::span<const std::byte> told = payload.subspan(sizeof header + rows * sizeof(ring::StepResultRow));
      std::uint32_t tokens = 0;
      for (std::size_t n = 0; n < rows; ++n) {
        ring::StepResultRow row;
        std::memcpy(&row, payload.data() + sizeof header + n * sizeof row, sizeof row);
        std::array<std::uint32_t, kMostWords> words;
        const auto of_row = take_told(row, told, words);
        if (!of_row) {
          spdlog::error("edge 4: step {} lacks what is told of its tokens; what is left of it is dropped",
                        header.step);
          ctx_.desk()->add(Counter::kStaleResults);
          break;
        }
        tokens += on_result_row(row, *of_row);
      }
      step_ns_ = d->t_pub > published_ns_ ? d->t_pub - published_ns_ : 0;
      if (published_ns_ != 0) drafts_.finished(step_ns_, tokens);
      results_seen_ = std::max(results_seen_, d->aux + 1);
    }
    crash_point(CrashPoint::kCommitBeforeHead);
    from_compute_.pop();
    worked = true;
  }
  return worked;
}

std::uint32_t RouterStage::on_result_row(const ring::StepResultRow& row,
                                         std::span<const std::uint32_t> told) {
  if (row.record >= journal_.count() || !journal_.in_use(row.record) || journal_.finished(row.record) ||
      journal_.at(row.record).request.load(std::memory_order_relaxed) != row.request) {
    ctx_.desk()->add(Counter::kStaleResults);
    return 0;
  }
  const std::uint32_t i = row.record;
  if (row.status == ring::RowStatus::kCancelled) return 0;
  if (row.status == ring::RowStatus::kFailed) {
    const std::size_t n = strnlen(row.error, sizeof row.error);
    journal_.fail(i, {row.error, n}, ctx_.now());
    tell_gateway(i);
    return 0;
  }
  // A result [a, b) counts iff a <= kv_len < b: it is the key that makes a repeated result harmless. Here b
  // is the end of the rows that were certain; those of drafts that stood follow, up to `end`.
  const std::uint32_t kv_len = journal_.at(i).kv_len.load(std::memory_order_relaxed);
  const std::uint32_t known = journal_.known(i);
  const std::uint32_t drawn = row.sampled;
  const std::uint32_t end = row.start + row.count, certain = end - (drawn > 0 ? drawn - 1 : 0);
  if (certain > end || row.start > kv_len || kv_len >= certain || certain > known ||
      row.logprobs != journal_.at(i).params.logprobs) {
    ctx_.desk()->add(Counter::kStaleResults);
    return 0;
  }
  const shm::RequestParams& p = journal_.at(i).params;
  const bool decodes = row.start + 1 == known && journal_.committed(i).length > 0;
  if (!decodes) prompt_rows_ += certain - kv_len;
  std::uint32_t tokens = 0;
  if (drawn != 0 && certain == known) {
    count_drafts(row);
    tokens = commit(i, {row.tokens, drawn}, told);
    if (decodes) note_stall(i);
    rows_at_token_[i] = prompt_rows_;
  }
  // After the commit: were it before, a death in between would leave no row to draw the token from again.
  journal_.set_kv_len(i, std::min(end, journal_.known(i)));
  if (certain <= p.prompt_tokens) ctx_.desk()->add(Counter::kPromptTokens, certain - kv_len);
  tell_gateway(i);
  if (tokens != 0) drafts_.committed(i, active() == 1);
  return tokens;
}

std::uint32_t RouterStage::commit(std::uint32_t record, std::span<const std::uint32_t> tokens,
                                  std::span<const std::uint32_t> told) {
  const shm::RequestParams& p = journal_.at(record).params;
  const std::uint32_t length = journal_.committed(record).length;
  std::uint32_t n = 0;
  Finish finish = Finish::kNone;
  while (n < tokens.size() && finish == Finish::kNone) {
    const bool eos = p.ends_at(tokens[n]);
    finish = eos ? Finish::kStop : length + ++n >= p.max_tokens ? Finish::kLength : Finish::kNone;
    n += eos ? 1 : 0;
  }
  journal_.commit_tokens(record, tokens.first(n), finish, ctx_.now(),
                         told.first(n * std::size_t{shm::logprob_words(p.logprobs)}));
  ctx_.desk()->add(Counter::kTokensCommitted, n);
  return n;
}

void RouterStage::count_drafts(const ring::StepResultRow& row) {
  const auto nth = [](Counter first, std::uint32_t n) {
    return static_cast<Counter>(static_cast<std::uint32_t>(first) + n);
  };
  for (std::uint32_t n = 0; n < std::min(row.drafts, ring::kMostDrafted); ++n) {
    ctx_.desk()->add(nth(Counter::kDrafted1, n));
    if (n + 1 < row.sampled) ctx_.desk()->add(nth(Counter::kAccepted1, n));
  }
}

void RouterStage::note_stall(std::uint32_t record) {
  // An earlier life's tokens are not known to this one.
  if (rows_at_token_[record] == 0) return;
  const std::uint64_t stall = prompt_rows_ - rows_at_token_[record];
  if (stall > ctx_.desk()->get(Counter::kLongestStall)) ctx_.desk()->set(Counter::kLongestStall, stall);
}

void RouterStage::tell_gateway(std::uint32_t record) {
  ring::Message m;
  m.kind = ring::Kind::kToken;
  m.request = journal_.at(record).request.load(std::memory_order_relaxed);
  m.pos = journal_.committed(record).length;
  // A full ring loses nothing: the truth is the journal, and the gateway is rung either way.
  to_gateway_.publish(m);
}

}  // namespace wisp::router
