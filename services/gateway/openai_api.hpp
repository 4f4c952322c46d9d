#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "model/manifest.hpp"
#include "shm/journal.hpp"

/// The OpenAI dialect, both directions, as pure functions: no sockets, no shared memory, no clock.
namespace wisp::gateway {

enum class Endpoint { kChat, kCompletion };

/// A refusal as the API words it.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;                ///< the field at fault; "" = null
  std::string code;                 ///< "" = null
  std::uint32_t retry_after_s = 0;  ///< 0 = no such header
};
template <class T>
using ApiResult = std::variant<T, ApiError>;

/// {"error":{"message","type","param","code"}}; the type follows from the status.
std::string error_body(const ApiError& e);
ApiError bad_field(std::string param, std::string message);
/// A prompt that leaves no room; `message` says how long it is.
ApiError context_exceeded(std::string param, const std::string& message);
/// What an Error of our own means to a client.
ApiError api_error(const Error& e);

/// A checked request. What is optional was not given (or null) and takes the model's default.
struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  nlohmann::ordered_json messages;        ///< chat: checked by read_messages
  nlohmann::ordered_json template_extra;  ///< chat_template_kwargs: variables for the template
  std::optional<std::string> prompt;      ///< completions: text, or
  std::vector<std::uint32_t> prompt_ids;  ///< completions: ids
  std::optional<std::uint32_t> max_tokens;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<std::uint32_t> top_k;
  std::optional<float> repetition_penalty;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;
  bool ignore_eos = false;
  bool return_token_ids = false;
  bool write_logits = false;
  std::uint32_t logprobs = 0;  ///< as in shm::RequestParams
};

/// Reads a body of /v1/chat/completions or /v1/completions. Every refusal names the field; unknown fields
/// pass. `model` is the one that is served; a request for another one is answered 404.
ApiResult<ApiRequest> parse_request(Endpoint endpoint, std::string_view body, std::string_view model);

/// What the engine allows a request to take.
struct Limits {
  std::uint32_t ctx = 0;         ///< positions of a sequence
  std::uint32_t vocab = 0;       ///< ids are below it; 0 = not known
  bool logits = false;           ///< whether this run has a logits directory
  bool default_max_all = false;  ///< no max_tokens given: all the room left, not min(kDefaultMaxTokens, room)
  std::uint32_t logprobs = 0;    ///< the largest RequestParams::logprobs that this run has room for
};
inline constexpr std::uint32_t kDefaultMaxTokens = 4096;

/// Settles every number that decides the answer. `drawn_seed` is used where the request samples and names
/// none. Errors: a prompt that leaves no room, ids outside the vocabulary, logits without a directory,
/// log-probabilities without room.
ApiResult<shm::RequestParams> settle(const ApiRequest& r, const model::GenerationDefaults& defaults,
                                     const Limits& limits, std::uint64_t drawn_seed, std::uint64_t now_s,
                                     const std::vector<std::uint32_t>& prompt);

/// What every object of one answer repeats.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kChat;
  std::uint64_t request = 0;
  std::uint64_t created_s = 0;
  std::string model;
};
struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint64_t seed = 0;
};

/// "chatcmpl-<hex>" or "cmpl-<hex>".
std::string answer_id(const AnswerHead& head);
/// A JSON string, quoted; what is not UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);
std::string usage_json(const Usage& u);

/// Makes the chunks of a stream: the constant parts are put together once.
class ChunkWriter {
 public:
  ChunkWriter(const AnswerHead& head, bool include_usage);
  std::string role() const;  ///< chat: the first chunk
  /// `token` may be null. `logprobs`: its own, as JSON.
  std::string delta(std::string_view text, const std::uint32_t* token,
                    std::string_view logprobs = "null") const;
  std::string finish(std::string_view rest, std::string_view reason) const;  ///< the one final chunk
  std::string usage(const Usage& u) const;                                   ///< choices are empty

 private:
  std::string choice(std::string_view inner, std::string_view reason,
                     std::string_view logprobs = "null") const;
  bool chat_;
  std::string head_;
  std::string tail_;
};

/// The whole answer of a request that does not stream. `ids` may be null. `logprobs`: as JSON.
std::string answer_body(const AnswerHead& head, std::string_view text, std::string_view reason,
                        const Usage& u, const std::vector<std::uint32_t>* ids,
                        std::string_view logprobs = "null");
std::string model_json(std::string_view name, std::uint64_t created_s);
std::string models_body(std::string_view name, std::uint64_t created_s);

}  // namespace wisp::gateway
