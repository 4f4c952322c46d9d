#include "services/gateway/prompt.hpp"

#include <algorithm>

#include "model/json.hpp"
#include "services/gateway/text/chat_template.hpp"
#include "services/gateway/text/tokenizer_folder.hpp"

namespace wisp::gateway {

using Json = nlohmann::ordered_json;

namespace {
/// What went wrong with a prompt, as the client's fault or ours.
ApiError prompt_error(const Error& e, const char* field) {
  switch (e.code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kUnsupported:
    case ErrorCode::kExhausted:
      return bad_field(field, e.text);
    case ErrorCode::kUnavailable:
      // The helper was started twice for this request already: asking again will not mend it.
      return {500, e.text, "", "unavailable", 0};
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt:
      break;
  }
  return {500, e.text, "", "", 0};
}

/// A text of an object, or "" where it is none.
std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

constexpr const char* kNoTokenizer =
    "this model's folder has neither tokenizer.json nor tiktoken.model, so only /v1/completions with a "
    "prompt of token ids works";
}  // namespace

Status PromptMaker::load(const std::string& folder, std::size_t max_ids) {
  max_ids_ = max_ids;
  WISP_ASSIGN(auto tokenizer, text::load_tokenizer(folder));
  if (!tokenizer) return {};
  tokenizer_ = std::move(tokenizer);
  WISP_ASSIGN(const auto json,
              text::read_optional(folder + "/tokenizer.json", text::Tokenizer::kMaxJsonBytes));
  if (json) note_first(*json);
  WISP_TRY(load_config(folder));
  return load_template(folder);
}

Status PromptMaker::load_config(const std::string& folder) {
  for (const char* name : {"/special_tokens_map.json", "/tokenizer_config.json"}) {
    WISP_ASSIGN(const auto text, text::read_optional(folder + name, model::kMaxJsonBytes));
    if (!text) continue;
    // The depth check of the shared parser comes first; this one keeps the order of keys.
    WISP_TRY(model::parse_json_object(*text, folder + name));
    note_special(Json::parse(*text, nullptr, false));
  }
  return {};
}

/// What the post-processor of tokenizer.json writes before a text: the tokens of a template up to its
/// sequence.
void PromptMaker::note_first(const std::string& tokenizer_json) {
  // The tokenizer has read the same text, so it is sound; all but the one key is dropped as it is read.
  const auto only = [](int depth, Json::parse_event_t event, Json& parsed) {
    return depth != 1 || event != Json::parse_event_t::key || parsed == "post_processor";
  };
  const Json root = Json::parse(tokenizer_json, only, false);
  const auto found = root.find("post_processor");
  if (found == root.end() || !found->is_object()) return;
  const Json steps = text_of(*found, "type") == "Sequence" ? found->value("processors", Json::array())
                                                           : Json::array({*found});
  for (const Json& step : steps) {
    if (!step.is_object() || text_of(step, "type") != "TemplateProcessing") continue;
    for (const Json& piece : step.value("single", Json::array())) {
      const auto token = piece.is_object() ? piece.find("SpecialToken") : piece.end();
      if (token == piece.end() || !token->is_object()) return;  // the text itself
      if (const auto id = tokenizer_->id_of(text_of(*token, "id"))) first_.push_back(*id);
    }
  }
}

void PromptMaker::note_special(const Json& config) {
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token"}) {
    const auto it = config.find(key);
    if (it == config.end()) continue;
    if (it->is_string()) special_tokens_[key] = *it;
    if (it->is_object() && it->contains("content") && (*it)["content"].is_string())
      special_tokens_[key] = (*it)["content"];
  }
  const auto add = config.find("add_bos_token");
  const auto bos = special_tokens_.find("bos_token");
  if (add != config.end() && add->is_boolean()) {  // decides alone, where it is given
    first_.clear();
    if (add->get<bool>() && bos != special_tokens_.end())
      if (const auto id = tokenizer_->id_of(bos->get_ref<const std::string&>())) first_ = {*id};
  }
  const auto own = config.find("chat_template");
  if (own != config.end() && own->is_string()) chat_template_ = own->get<std::string>();
}

Status PromptMaker::load_template(const std::string& folder) {
  WISP_ASSIGN(auto text, text::read_optional(folder + "/chat_template.jinja", model::kMaxJsonBytes));
  if (text) chat_template_ = std::move(*text);
  return {};
}

ApiResult<std::vector<std::uint32_t>> PromptMaker::ids_of(const ApiRequest& request) {
  if (request.endpoint == Endpoint::kChat) return chat_ids(request);
  if (request.prompt) return text_ids(*request.prompt);
  return request.prompt_ids;
}

ApiResult<std::vector<std::uint32_t>> PromptMaker::settled(
    Result<std::optional<std::vector<std::uint32_t>>> ids, const char* field) const {
  if (!ids.ok()) return prompt_error(ids.error(), field);
  if (*ids) return std::move(**ids);
  return context_exceeded(
      field, "has more than " + std::to_string(max_ids_) + " tokens, which is all the context holds");
}

ApiResult<std::vector<std::uint32_t>> PromptMaker::text_ids(const std::string& text) {
  if (!tokenizer_) return bad_field("prompt", kNoTokenizer);
  auto made = settled(tokenizer_->encode_up_to(max_ids_, text, true), "prompt");
  if (auto* ids = std::get_if<std::vector<std::uint32_t>>(&made))
    if (!std::equal(first_.begin(), first_.end(), ids->begin(),
                    ids->begin() + static_cast<std::ptrdiff_t>(std::min(first_.size(), ids->size()))))
      ids->insert(ids->begin(), first_.begin(), first_.end());
  return made;
}

ApiResult<std::vector<std::uint32_t>> PromptMaker::chat_ids(const ApiRequest& request) {
  if (!tokenizer_) return bad_field("messages", kNoTokenizer);
  if (chat_template_.empty())
    return bad_field("messages", "this model has no chat template; use /v1/completions with a prompt");
  text::ChatInput input;
  input.messages = request.messages;
  if (request.template_extra.is_object()) input.kwargs = request.template_extra;
  input.special_tokens = special_tokens_;
  const pid_t before = helper_.pid();
  const auto rendered = text::render_chat(*tokenizer_, helper_, chat_template_, input);
  // Not the first start: a helper that died, between two requests or under this one.
  if (helper_.pid() != before && helper_pid_ != -1) ++restarts_;
  if (helper_.pid() != -1) helper_pid_ = helper_.pid();
  if (!rendered.ok()) return prompt_error(rendered.error(), "messages");
  return settled(rendered->encode_up_to(max_ids_), "messages");
}

std::string_view PromptMaker::bytes(std::uint32_t id) const {
  return tokenizer_ ? tokenizer_->piece_bytes(id) : std::string_view();
}

}  // namespace wisp::gateway
