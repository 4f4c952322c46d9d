#include "services/gateway/text/tokenizer_folder.hpp"

#include "model/json.hpp"

namespace wisp::text {

Result<std::optional<std::string>> read_optional(const std::string& path, std::uint64_t max_bytes) {
  auto text = model::read_text_file(path, max_bytes);
  if (text.ok()) return std::optional<std::string>(std::move(*text));
  if (text.error().code == ErrorCode::kNotFound) return std::optional<std::string>();
  return std::move(text).error();
}

Result<std::optional<Tokenizer>> load_tokenizer(const std::string& folder) {
  WISP_ASSIGN(const auto json, read_optional(folder + "/tokenizer.json", Tokenizer::kMaxJsonBytes));
  std::optional<std::string> ranks;
  if (!json) {
    WISP_ASSIGN(ranks, read_optional(folder + "/tiktoken.model", Tokenizer::kMaxJsonBytes));
  }
  if (!json && !ranks) return std::optional<Tokenizer>();
  WISP_ASSIGN(const auto config, read_optional(folder + "/tokenizer_config.json", model::kMaxJsonBytes));
  auto tokenizer = json ? Tokenizer::load(*json) : Tokenizer::load_tiktoken(*ranks, config.value_or(""));
  if (!tokenizer.ok()) return std::move(tokenizer).error().within(folder);
  return std::optional<Tokenizer>(std::move(*tokenizer));
}

}  // namespace wisp::text
