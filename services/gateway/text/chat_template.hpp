#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "services/gateway/text/prompt_guard.hpp"
#include "services/gateway/text/template_helper.hpp"
#include "services/gateway/text/tokenizer.hpp"

namespace wisp::text {

/// What a chat template gets. The JSON keeps the order of keys (ordered_json), because templates print tools
/// as they stand. Everything but `special_tokens` may come from a client and is guarded (see PromptGuard).
struct ChatInput {
  using Json = nlohmann::ordered_json;
  Json messages = Json::array();         ///< [{role, content, ...}]; content a string, text parts, or null
  Json tools;                            ///< array, or null for none
  Json kwargs = Json::object();          ///< more variables of the template, e.g. enable_thinking
  Json special_tokens = Json::object();  ///< bos_token, eos_token, ...: texts from the checkpoint
  bool add_generation_prompt = true;
};

/// `messages` as templates take them: text parts joined by line feeds; null or absent content becomes null
/// beside tool calls and "" elsewhere; arguments of tool calls parsed when they are the text of an object.
/// kInvalid and kUnsupported name the message by its index.
Result<ChatInput::Json> normalize_messages(const ChatInput::Json& messages);

/// What a chat template made of a conversation: text in which the template's own control tokens and those
/// that a client wrote can still be told apart. `tokenizer` outlives it.
class RenderedChat {
 public:
  RenderedChat(const Tokenizer& tokenizer, PromptGuard guard, std::string text)
      : tokenizer_(tokenizer), guard_(std::move(guard)), text_(std::move(text)) {}

  /// Control tokens come from the template alone: one written in a message, a tool or a variable is encoded
  /// as ordinary text. Adds no BOS beyond the template's own. nullopt and errors: as Tokenizer::encode_up_to.
  Result<std::optional<std::vector<std::uint32_t>>> encode_up_to(std::size_t max_ids) const;

 private:
  const Tokenizer& tokenizer_;
  PromptGuard guard_;
  std::string text_;
};

/// Renders `chat_template`. Errors: those of TemplateHelper::render, and kInvalid for messages of another
/// shape.
Result<RenderedChat> render_chat(const Tokenizer& tokenizer, TemplateHelper& helper,
                                 const std::string& chat_template, const ChatInput& input);

}  // namespace wisp::text
