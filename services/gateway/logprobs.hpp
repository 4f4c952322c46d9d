#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "services/gateway/openai_api.hpp"

namespace wisp::gateway {

/// The bytes of a token; a view that outlives the call. Empty for control tokens, or without a tokenizer.
using TokenBytes = std::function<std::string_view(std::uint32_t)>;

/// Makes the `logprobs` of a choice, token by token, from what the journal tells of each (see
/// shm::logprob_words): a pure function, as the rest of an answer.
///
/// A token's text is that of its bytes. In the chat API it has U+FFFD where they are not UTF-8 (a character
/// may be several tokens; the bytes beside it are exact), and is empty for control tokens, that which ends
/// the answer among them, or without a tokenizer. In the older API, where the likeliest tokens are keys of an
/// object, all these, and one whose text a likelier token has, are "token_id:<id>".
///
/// Numbers are the shortest that read back as the same float.
class LogprobsWriter {
 public:
  LogprobsWriter(Endpoint endpoint, TokenBytes bytes)
      : chat_(endpoint == Endpoint::kChat), bytes_(std::move(bytes)) {}

  /// `told`: shm::logprob_words(asked) words, asked not 0. `offset`: characters of the answer's text before
  /// this token's, which the older API tells.
  void add(std::uint32_t token, std::span<const std::uint32_t> told, std::uint64_t offset);
  /// The object of all that was added since the last call.
  std::string take();

 private:
  void add_chat(std::uint32_t token, std::span<const std::uint32_t> told);
  void add_text(std::uint32_t token, std::span<const std::uint32_t> told, std::uint64_t offset);

  bool chat_;
  TokenBytes bytes_;
  std::string content_;  ///< chat: elements, separated by commas; else tokens
  std::string offsets_, logprobs_, tops_;
};

/// The shortest decimal that reads back as `value`; -9999 for what is no finite number.
std::string float_json(float value);

}  // namespace wisp::gateway
