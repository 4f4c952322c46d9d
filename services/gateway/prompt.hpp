#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "services/gateway/openai_api.hpp"
#include "services/gateway/text/template_helper.hpp"
#include "services/gateway/text/tokenizer.hpp"

namespace wisp::gateway {

/// Text in, ids out, and bytes of ids, with the tokenizer and the chat template of a converted folder. A
/// folder without either form of one still answers prompts of ids. Once loaded, bytes() may be called from
/// any thread, the rest from one: the template helper ends with the thread that first rendered.
class PromptMaker {
 public:
  explicit PromptMaker(const text::TemplateHelper::Options& helper) : helper_(helper) {}
  /// Reads tokenizer.json (else tiktoken.model), chat_template.jinja and tokenizer_config.json of `folder`,
  /// as far as they are there. No prompt of text becomes more than `max_ids` ids.
  Status load(const std::string& folder, std::size_t max_ids);

  /// The ids of a request's prompt. Blocks while a chat template renders.
  ApiResult<std::vector<std::uint32_t>> ids_of(const ApiRequest& request);
  /// The bytes of a token, a view into the tokenizer; control tokens have none.
  std::string_view bytes(std::uint32_t id) const;
  /// How often the template helper had to be started again.
  std::uint64_t helper_restarts() const { return restarts_; }

 private:
  Status load_template(const std::string& folder);
  Status load_config(const std::string& folder);
  void note_special(const nlohmann::ordered_json& config);
  ApiResult<std::vector<std::uint32_t>> chat_ids(const ApiRequest& request);
  ApiResult<std::vector<std::uint32_t>> text_ids(const std::string& text);
  /// What the tokenizer gave, as the API words it.
  ApiResult<std::vector<std::uint32_t>> settled(Result<std::optional<std::vector<std::uint32_t>>> ids,
                                                const char* field) const;

  std::size_t max_ids_ = 0;
  std::optional<text::Tokenizer> tokenizer_;
  std::string chat_template_;
  nlohmann::ordered_json special_tokens_ = nlohmann::ordered_json::object();
  std::vector<std::uint32_t> first_;  ///< written before a completion's text, where the model asks for it
  text::TemplateHelper helper_;
  pid_t helper_pid_ = -1;
  std::uint64_t restarts_ = 0;
};

}  // namespace wisp::gateway
