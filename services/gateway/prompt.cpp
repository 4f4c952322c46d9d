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
    case ErrorCode::kInterrupted:
      // The helper was started twice for this request already: asking again will not mend it.
      return {500, e.text, "", "unavailable", 0};
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt:
      break;
  }
  return {500, e.text, "", "", 0};
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
  WISP_ASSIGN(first_, text::first_tokens(folder, *tokenizer_));
  if (first_.size() >= max_ids)
    return invalid(folder + ": its tokenizer writes " + std::to_string(first_.size()) +
                   " tokens before a text, more than the context holds");
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

void PromptMaker::note_special(const Json& config) {
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token"}) {
    const auto it = config.find(key);
    if (it == config.end()) continue;
    if (it->is_string()) special_tokens_[key] = *it;
    if (it->is_object() && it->contains("content") && (*it)["content"].is_string())
      special_tokens_[key] = (*it)["content"];
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
  auto made = settled(tokenizer_->encode_up_to(max_ids_ - first_.size(), text, true), "prompt");
  if (auto* ids = std::get_if<std::vector<std::uint32_t>>(&made)) text::begin_with(first_, *ids);
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
