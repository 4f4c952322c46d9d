#pragma once
#include <optional>
#include <string>

#include "services/gateway/text/tokenizer.hpp"

namespace wisp::text {

/// The text of a file that may be absent. Errors: kIo, kInvalid (larger than `max_bytes`).
Result<std::optional<std::string>> read_optional(const std::string& path, std::uint64_t max_bytes);

/// The tokenizer of a model folder: tokenizer.json, or Kimi's tiktoken.model with tokenizer_config.json;
/// nothing where there is neither. Errors: those of Tokenizer, with the folder.
Result<std::optional<Tokenizer>> load_tokenizer(const std::string& folder);

}  // namespace wisp::text
