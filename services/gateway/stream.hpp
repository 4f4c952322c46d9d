#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/logprobs.hpp"
#include "services/gateway/openai_api.hpp"
#include "services/gateway/text/stop_matcher.hpp"
#include "services/gateway/text/utf8_stream.hpp"
#include "shm/journal.hpp"

/// From a record's ids to the bytes of an answer: a pure function, so that a replay after any death is
/// byte-equal.
///
/// Events of a stream are numbered; each carries `id: <request>/<n>`, the request in decimal:
///   n = 0            chat only: the chunk with the role
///   n = 1 .. T       token n (an empty delta included; the end-of-sequence token has one), with its own
///                    log-probabilities where the request asks for them; the other events have none
///   n = T + 1        the one chunk with a finish_reason, or the error that ended the request
///   n = T + 2        usage, where stream_options.include_usage asks for it
/// then `data: [DONE]` without a number (not after an error). A client that lost its connection repeats its
/// request with `Last-Event-ID: <request>/<n>` of the last event it received whole, or `<request>/-` if it
/// received none; it gets the events after that one, then [DONE]. Comment lines (`: ...`) have no number and
/// are not repeated.
namespace wisp::gateway {

/// What of an answer is not in its record: it comes from the request's body, which a resuming client repeats.
struct AnswerShape {
  std::string model;
  Endpoint endpoint = Endpoint::kChat;
  std::vector<std::string> stop;  ///< checked by parse_request
  bool include_usage = false;
  bool token_ids = false;
};

/// Text and log-probabilities of an answer, token by token.
class AnswerText {
 public:
  AnswerText(const std::vector<std::string>& stop, const shm::RequestParams& params, Endpoint endpoint,
             TokenBytes bytes);

  /// The text that this token releases. After a stop string: "". `told`: what the journal tells of it,
  /// shm::logprob_words(params.logprobs) words.
  std::string push(std::uint32_t token, std::span<const std::uint32_t> told);
  /// What the end of the answer releases: a character cut off, the beginning of a stop string that never
  /// came.
  std::string flush();
  /// The `logprobs` of a choice with the tokens since the last call, as JSON; null where none are asked for.
  std::string logprobs();
  /// A stop string is complete: the answer ends with the token pushed last, whatever the record says.
  bool stopped() const { return matcher_.stopped(); }

 private:
  text::Utf8Stream utf8_;
  text::StopMatcher matcher_;
  shm::RequestParams params_;
  TokenBytes bytes_;
  LogprobsWriter logprobs_;
  /// Of the tokens so far, those that a stop string may hold back included. What has no whole character yet
  /// does not count: a token that goes on with one has the place where it began.
  std::uint64_t characters_ = 0;
};

/// "stop" or "length".
std::string_view finish_reason(shm::Finish finish, bool stop_string);
/// What a client reads of a request that ended without an answer.
ApiError finish_error(shm::Finish finish, std::string_view record_error);

/// The position of a client in a stream; `nullopt` = it has nothing yet.
struct ResumePoint {
  std::uint64_t request = 0;
  std::optional<std::uint64_t> last;
};
/// Reads a Last-Event-ID; nullopt where it is malformed.
std::optional<ResumePoint> parse_event_id(std::string_view id);

/// Makes the events of one answer in order. Those up to `received` are made and left out.
class EventStream {
 public:
  EventStream(const AnswerShape& shape, std::uint64_t request, const shm::RequestParams& params,
              TokenBytes bytes, std::optional<std::uint64_t> received);

  void begin(std::string& out);
  /// `told`: as AnswerText::push() has it.
  void token(std::uint32_t id, std::span<const std::uint32_t> told, std::string& out);
  /// The final chunk, usage and [DONE]; or the error.
  void end(shm::Finish finish, std::string_view record_error, std::string& out);
  void fail(const ApiError& error, std::string& out);

  std::uint32_t tokens() const { return tokens_; }
  bool stopped() const { return text_.stopped(); }

 private:
  void emit(std::uint64_t n, const std::string& data, std::string& out) const;
  bool wanted(std::uint64_t n) const { return !received_ || n > *received_; }

  std::uint64_t request_;
  shm::RequestParams params_;
  AnswerText text_;
  ChunkWriter chunk_;
  bool chat_;
  bool include_usage_;
  bool token_ids_;
  std::optional<std::uint64_t> received_;
  std::uint32_t tokens_ = 0;
};

}  // namespace wisp::gateway
