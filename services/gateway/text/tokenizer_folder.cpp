#include "services/gateway/text/tokenizer_folder.hpp"

#include <algorithm>

#include "model/json.hpp"

namespace wisp::text {

namespace {

using Json = nlohmann::ordered_json;

/// A text of an object, or "" where it is none.
std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::vector<std::uint32_t> of_post_processor(const std::string& tokenizer_json, const Tokenizer& tokenizer) {
  // The tokenizer has read the same text, so it is sound; all but the one key is dropped as it is read.
  const auto only = [](int depth, Json::parse_event_t event, Json& parsed) {
    return depth != 1 || event != Json::parse_event_t::key || parsed == "post_processor";
  };
  std::vector<std::uint32_t> out;
  const Json root = Json::parse(tokenizer_json, only, false);
  const auto found = root.find("post_processor");
  if (found == root.end() || !found->is_object()) return out;
  const Json steps = text_of(*found, "type") == "Sequence" ? found->value("processors", Json::array())
                                                           : Json::array({*found});
  for (const Json& step : steps) {
    if (!step.is_object() || text_of(step, "type") != "TemplateProcessing") continue;
    for (const Json& piece : step.value("single", Json::array())) {
      const auto token = piece.is_object() ? piece.find("SpecialToken") : piece.end();
      if (token == piece.end() || !token->is_object()) return out;  // the text itself
      if (const auto id = tokenizer.id_of(text_of(*token, "id"))) out.push_back(*id);
    }
  }
  return out;
}

}  // namespace

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
  WISP_ASSIGN(const auto json, read_optional(folder + "/tokenizer.json", Tokenizer::kMaxJsonBytes));
  return json ? of_post_processor(*json, tokenizer) : std::vector<std::uint32_t>();
}

void begin_with(const std::vector<std::uint32_t>& first, std::vector<std::uint32_t>& ids) {
  if (ids.size() >= first.size() && std::equal(first.begin(), first.end(), ids.begin())) return;
  ids.insert(ids.begin(), first.begin(), first.end());
}

}  // namespace wisp::text
