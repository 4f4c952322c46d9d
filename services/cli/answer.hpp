#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "services/cli/http_client.hpp"

namespace wisp::cli {

/// What decides an answer beside the prompt; what is not given is the model's own default.
struct Sampling {
  std::optional<std::uint32_t> max_tokens;
  std::optional<double> temperature;
  std::optional<std::uint32_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> repetition_penalty;
  std::optional<std::uint64_t> seed;
  bool ignore_eos = false;
};

/// A question: a chat, a raw text or ids.
struct Question {
  std::string model;
  nlohmann::ordered_json messages;  ///< chat, where not empty
  std::string text;                 ///< raw, else
  std::vector<std::uint32_t> ids;   ///< raw, where not empty
  Sampling sampling;
  bool write_logits = false;
};
/// The POST that asks it.
StreamRequest to_request(const Question& q, const std::string& socket);

/// An answer as far as it came.
struct Answer {
  std::string text;
  std::vector<std::uint32_t> token_ids;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
  std::string finish_reason;  ///< "stop", "length"; "cancelled" after Ctrl-C
  std::optional<std::uint64_t> seed;
  std::string request;
  double ttft_s = 0.0;        ///< from the POST to the first token; 0 = none came
  double decode_tok_s = 0.0;  ///< after the first token; 0 = fewer than two came
  std::uint32_t resumes = 0;
};

/// Puts an answer together from the gateway's events. Time is handed in, in seconds.
class AnswerReader {
 public:
  explicit AnswerReader(double start_s) : start_s_(start_s) {}

  /// Takes one event; returns the text it adds. Errors: the gateway's, in mid-stream.
  Result<std::string> take(const std::string& data, double now_s);
  /// The answer once the stream has ended.
  Answer finish(const StreamEnd& end);

 private:
  Answer answer_;
  double start_s_;
  double first_s_ = 0.0;
  double last_s_ = 0.0;
  std::uint64_t tokens_ = 0;
};

/// Asks and hands text on as it comes: `text` for the answer, `comment` for the gateway's remarks ("prompt
/// 3/8").
Result<Answer> ask(const Question& q, const std::string& socket, const StreamWorld& world,
                   const std::function<void(const std::string&)>& text,
                   const std::function<void(std::string_view)>& comment);

}  // namespace wisp::cli
