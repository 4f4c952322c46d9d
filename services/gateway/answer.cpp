#include "services/gateway/answer.hpp"

#include <algorithm>

namespace wisp::gateway {

using shm::Finish;
using shm::JournalReader;

namespace {
/// Tokens read from the journal at once.
constexpr std::uint32_t kWindow = 64;
}  // namespace

Answer::Answer(std::uint64_t request, AnswerShape shape, bool streams, TokenBytes bytes,
               std::optional<std::uint64_t> received)
    : request_(request),
      shape_(std::move(shape)),
      streams_(streams),
      bytes_(std::move(bytes)),
      received_(received) {}

bool Answer::open(const JournalReader& journal, std::string& out) {
  const auto params = journal.params(*record_, request_);
  if (!params) return false;
  params_ = *params;
  each_ = shm::logprob_words(params_.logprobs);
  if (!streams_) {
    text_.emplace(shape_.stop, params_, shape_.endpoint, bytes_);
    return true;
  }
  events_.emplace(shape_, request_, params_, bytes_, received_);
  events_->begin(out);
  return true;
}

bool Answer::look(const JournalReader& journal) {
  if (finished_) return true;
  const auto state = journal.state(*record_, request_);
  if (!state) return false;
  if (state->commit.finish != Finish::kNone) {
    const auto error = journal.error(*record_, request_);
    if (!error || !read(journal, std::max(taken_, state->commit.length) - taken_)) return false;
    record_error_ = *error;
    finished_ = true;
  }
  seen_ = *state;
  return true;
}

/// Makes the next `count` tokens the window, with what is told of them.
bool Answer::read(const JournalReader& journal, std::uint32_t count) {
  window_from_ = taken_;
  window_.resize(count);
  window_told_.resize(count * each_);
  if (journal.ids(*record_, request_, params_.prompt_tokens + std::uint64_t{taken_}, window_) &&
      (each_ == 0 || journal.told(*record_, request_, params_.logprobs, taken_, window_told_)))
    return true;
  window_.clear();
  return false;
}

bool Answer::next_token(const JournalReader& journal, std::uint32_t& token,
                        std::span<const std::uint32_t>& told) {
  if (taken_ - window_from_ >= window_.size() &&
      !read(journal, std::min(seen_.commit.length - taken_, kWindow)))
    return false;
  const std::size_t at = taken_ - window_from_;
  token = window_[at];
  told = std::span(window_told_).subspan(at * each_, each_);
  return true;
}

void Answer::take(std::uint32_t token, std::span<const std::uint32_t> told, std::string& out) {
  ++taken_;
  if (streams_) return events_->token(token, told, out);
  content_ += text_->push(token, told);
  if (shape_.token_ids) ids_.push_back(token);
}

Answer::Step Answer::end(std::string& out) {
  const Finish finish = stopped() ? Finish::kStopString : seen_.commit.finish;
  if (streams_) {
    events_->end(finish, record_error_, out);
    return Step::kEnd;
  }
  if (finish == Finish::kCancelled || finish == Finish::kError) {
    error_ = finish_error(finish, record_error_);
    return Step::kFailed;
  }
  content_ += text_->flush();
  out += answer_body({shape_.endpoint, request_, params_.created_s, shape_.model}, content_,
                     finish_reason(finish, stopped()), {params_.prompt_tokens, taken_, params_.seed},
                     shape_.token_ids ? &ids_ : nullptr, text_->logprobs());
  return Step::kEnd;
}

Answer::Step Answer::advance(const JournalReader& journal, std::size_t batch, std::string& out) {
  if (!record_) {
    record_ = journal.find(request_);
    if (!record_) return Step::kUnopened;
    if (!open(journal, out)) return Step::kLost;
  }
  if (!look(journal)) return Step::kLost;
  while (out.size() < batch && taken_ < seen_.commit.length && !stopped()) {
    std::uint32_t token = 0;
    std::span<const std::uint32_t> told;
    if (!next_token(journal, token, told)) return Step::kLost;
    take(token, told, out);
  }
  const bool all = stopped() || (finished_ && taken_ >= seen_.commit.length);
  if (all && out.size() < batch) return end(out);
  return out.empty() ? Step::kNothing : Step::kBytes;
}

bool Answer::has_news(const JournalReader& journal) const {
  if (!record_) return journal.find(request_).has_value();
  if (finished_) return true;
  const auto state = journal.state(*record_, request_);
  return !state || state->commit.length != seen_.commit.length || state->commit.finish != seen_.commit.finish;
}

void Answer::fail(const ApiError& error, std::string& out) {
  if (events_) return events_->fail(error, out);
  // The record was never seen: the error is the stream's only event.
  out += "id: " + std::to_string(request_) + "/1\ndata: " + error_body(error) + "\n\n";
}

}  // namespace wisp::gateway
