#pragma once
#include <optional>
#include <string>
#include <vector>

#include "services/gateway/text/tokenizer.hpp"

namespace wisp::text {

/// The text of a file that may be absent. Errors: kIo, kInvalid (larger than `max_bytes`).
Result<std::optional<std::string>> read_optional(const std::string& path, std::uint64_t max_bytes);

/// The tokenizer of a model folder: tokenizer.json, or Kimi's tiktoken.model with tokenizer_config.json;
/// nothing where there is neither. Errors: those of Tokenizer, with the folder.
Result<std::optional<Tokenizer>> load_tokenizer(const std::string& folder);

/// The tokens that the model wants before a text: the bos token where tokenizer_config.json says
/// add_bos_token, which decides alone where it is given; else what the post-processor of tokenizer.json
/// writes up to its sequence.
Result<std::vector<std::uint32_t>> first_tokens(const std::string& folder, const Tokenizer& tokenizer);
/// Puts them before `ids`, unless the text had them written out.
void begin_with(const std::vector<std::uint32_t>& first, std::vector<std::uint32_t>& ids);

}  // namespace wisp::text
