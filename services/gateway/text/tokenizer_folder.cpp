#include "services/gateway/text/tokenizer_folder.hpp"

#include <algorithm>

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

Result<std::vector<std::uint32_t>> first_tokens(const std::string& folder, const Tokenizer& tokenizer) {
  std::string bos;
  for (const char* name : {"/special_tokens_map.json", "/tokenizer_config.json"}) {
    WISP_ASSIGN(const auto text, read_optional(folder + name, model::kMaxJsonBytes));
    if (!text) continue;
    WISP_ASSIGN(const auto config, model::parse_json_object(*text, folder + name));
    if (const auto it = config.find("bos_token"); it != config.end()) {
      if (it->is_string()) bos = it->get<std::string>();
      if (it->is_object() && it->contains("content") && (*it)["content"].is_string())
        bos = (*it)["content"].get<std::string>();
    }
    const auto add = config.find("add_bos_token");
    if (add == config.end() || !add->is_boolean()) continue;
    const auto id = add->get<bool>() ? tokenizer.id_of(bos) : std::nullopt;
    return id ? std::vector<std::uint32_t>{*id} : std::vector<std::uint32_t>();
  }
  return tokenizer.post_processor_first();
}

void begin_with(const std::vector<std::uint32_t>& first, std::vector<std::uint32_t>& ids) {
  if (ids.size() >= first.size() && std::equal(first.begin(), first.end(), ids.begin())) return;
  ids.insert(ids.begin(), first.begin(), first.end());
}

}  // namespace wisp::text
