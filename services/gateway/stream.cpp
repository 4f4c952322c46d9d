#include "services/gateway/stream.hpp"

#include <algorithm>
#include <charconv>

namespace wisp::gateway {

namespace {
text::StopMatcher make_matcher(const std::vector<std::string>& stop) {
  auto matcher = text::StopMatcher::create(stop);
  WISP_CHECK(matcher.ok());  // parse_request has tried the same strings
  return std::move(matcher).value();
}

AnswerHead head_of(const AnswerShape& shape, std::uint64_t request, const shm::RequestParams& params) {
  return {shape.endpoint, request, params.created_s, shape.model};
}

bool parse_number(std::string_view text, std::uint64_t& out) {
  const char* end = text.data() + text.size();
  const auto [at, ec] = std::from_chars(text.data(), end, out);
  return ec == std::errc() && at == end && !text.empty();
}
}  // namespace

AnswerText::AnswerText(const std::vector<std::string>& stop, const shm::RequestParams& params,
                       Endpoint endpoint, TokenBytes bytes)
    : matcher_(make_matcher(stop)), params_(params), bytes_(bytes), logprobs_(endpoint, std::move(bytes)) {}

std::string AnswerText::push(std::uint32_t token, std::span<const std::uint32_t> told) {
  if (!told.empty()) logprobs_.add(token, told, characters_);
  if (stopped() || params_.ends_at(token)) return {};
  const std::string whole = utf8_.push(bytes_(token));
  // Bytes that begin a character.
  characters_ += static_cast<std::uint64_t>(
      std::count_if(whole.begin(), whole.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  return matcher_.push(whole).text;
}

std::string AnswerText::logprobs() {
  return params_.logprobs != 0 ? logprobs_.take() : "null";
}

std::string AnswerText::flush() {
  if (stopped()) return {};
  std::string rest = matcher_.push(utf8_.flush()).text;
  return rest + matcher_.flush();
}

std::string_view finish_reason(shm::Finish finish, bool stop_string) {
  return finish == shm::Finish::kLength && !stop_string ? "length" : "stop";
}

ApiError finish_error(shm::Finish finish, std::string_view record_error) {
  if (finish == shm::Finish::kCancelled) return {500, "the request was cancelled", "", "cancelled", 0};
  return {500, record_error.empty() ? "the request failed" : std::string(record_error), "", "failed", 0};
}

std::optional<ResumePoint> parse_event_id(std::string_view id) {
  const std::size_t slash = id.find('/');
  ResumePoint point;
  if (slash == std::string_view::npos || !parse_number(id.substr(0, slash), point.request))
    return std::nullopt;
  id.remove_prefix(slash + 1);
  if (id == "-") return point;
  std::uint64_t n = 0;
  if (!parse_number(id, n)) return std::nullopt;
  point.last = n;
  return point;
}

EventStream::EventStream(const AnswerShape& shape, std::uint64_t request, const shm::RequestParams& params,
                         TokenBytes bytes, std::optional<std::uint64_t> received)
    : request_(request),
      params_(params),
      text_(shape.stop, params, shape.endpoint, std::move(bytes)),
      chunk_(head_of(shape, request, params), shape.include_usage),
      chat_(shape.endpoint == Endpoint::kChat),
      include_usage_(shape.include_usage),
      token_ids_(shape.token_ids),
      received_(received) {}

void EventStream::emit(std::uint64_t n, const std::string& data, std::string& out) const {
  out += "id: ";
  out += std::to_string(request_);
  out += '/';
  out += std::to_string(n);
  out += "\ndata: ";
  out += data;
  out += "\n\n";
}

void EventStream::begin(std::string& out) {
  if (chat_ && wanted(0)) emit(0, chunk_.role(), out);
}

void EventStream::token(std::uint32_t id, std::span<const std::uint32_t> told, std::string& out) {
  const std::string text = text_.push(id, told), logprobs = text_.logprobs();
  ++tokens_;
  if (wanted(tokens_)) emit(tokens_, chunk_.delta(text, token_ids_ ? &id : nullptr, logprobs), out);
}

void EventStream::end(shm::Finish finish, std::string_view record_error, std::string& out) {
  const bool answered = finish == shm::Finish::kStop || finish == shm::Finish::kLength ||
                        finish == shm::Finish::kStopString || text_.stopped();
  if (!answered) return fail(finish_error(finish, record_error), out);
  const std::string rest = text_.flush();
  const std::uint64_t n = std::uint64_t{tokens_} + 1;
  if (wanted(n)) emit(n, chunk_.finish(rest, finish_reason(finish, text_.stopped())), out);
  if (include_usage_ && wanted(n + 1))
    emit(n + 1, chunk_.usage({params_.prompt_tokens, tokens_, params_.seed}), out);
  out += "data: [DONE]\n\n";
}

void EventStream::fail(const ApiError& error, std::string& out) {
  const std::uint64_t n = std::uint64_t{tokens_} + 1;
  if (wanted(n)) emit(n, error_body(error), out);
}

}  // namespace wisp::gateway
