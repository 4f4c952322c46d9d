#include "services/gateway/text/chat_template.hpp"

#include <string_view>
#include <utility>

#include "services/gateway/text/prompt_guard.hpp"

namespace wisp::text {
namespace {

using Json = ChatInput::Json;

/// Joins the texts of an array of parts; fields that a part has besides (cache marks) are of no use here.
Result<std::string> join_parts(const Json& parts) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string where = "content[" + std::to_string(i) + "]";
    const Json& part = parts[i];
    if (!part.is_object()) return invalid(where + ": is not an object");
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return invalid(where + ": has no type");
    const auto& name = type->get_ref<const std::string&>();
    if (name != "text" && name != "input_text" && name != "output_text") {
      return unsupported(where + ": type \"" + name + "\"; this engine reads text only");
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) return invalid(where + ": has no text");
    if (i > 0) out.push_back('\n');
    out += text->get_ref<const std::string&>();
  }
  return out;
}

bool has_tool_calls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

/// Clients send arguments as the text of a JSON object; templates expect the object.
void parse_arguments(Json& message) {
  if (!has_tool_calls(message)) return;
  for (Json& call : message["tool_calls"]) {
    if (!call.is_object()) continue;
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    Json parsed = Json::parse(arguments->get_ref<const std::string&>(), nullptr, false);
    if (parsed.is_object() && PromptGuard::is_shallow(parsed)) *arguments = std::move(parsed);
  }
}

Status normalize_message(Json& message) {
  if (!message.is_object()) return invalid("is not an object");
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return invalid("has no role");
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (has_tool_calls(message)) {
      message["content"] = nullptr;
    } else {
      message["content"] = "";
    }
  } else if (content->is_array()) {
    WISP_ASSIGN(std::string joined, join_parts(*content));
    *content = std::move(joined);
  } else if (!content->is_string()) {
    return invalid("content is neither a text nor an array of parts nor null");
  }
  parse_arguments(message);
  return {};
}

/// The same messages for a template that takes neither null content nor parsed arguments: "" and text.
Json without_null_and_objects(const Json& messages) {
  Json out = messages;
  for (Json& message : out) {
    if (message["content"].is_null()) message["content"] = "";
    if (!has_tool_calls(message)) continue;
    for (Json& call : message["tool_calls"]) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
      const auto arguments = call["function"].find("arguments");
      if (arguments != call["function"].end() && arguments->is_object()) *arguments = arguments->dump();
    }
  }
  return out;
}

Json make_context(const ChatInput& input, Json messages) {
  Json context = input.kwargs.is_object() ? input.kwargs : Json::object();
  context["tools"] = input.tools.is_array() && !input.tools.empty() ? input.tools : Json(nullptr);
  if (!context.contains("documents")) context["documents"] = nullptr;
  context["messages"] = std::move(messages);
  return context;
}

Status check_depth(const Json& value, const std::string& name) {
  if (PromptGuard::is_shallow(value)) return {};
  return invalid(name + ": nested more than " + std::to_string(PromptGuard::kMaxDepth) + " deep");
}

/// Guards the client's part of the context, adds the checkpoint's and renders.
Result<std::string> render_guarded(const PromptGuard& guard, TemplateHelper& helper,
                                   const std::string& source, const ChatInput& input, Json context,
                                   bool& type_error) {
  type_error = false;
  Status guarded = guard.guard(context);
  if (!guarded) return std::move(guarded).error().within("messages, tools or variables");
  for (const auto& token : input.special_tokens.items()) context[token.key()] = token.value();
  context["add_generation_prompt"] = input.add_generation_prompt;
  return helper.render(source, context, &type_error);
}

}  // namespace

Result<Json> normalize_messages(const Json& messages) {
  WISP_TRY(check_depth(messages, "messages"));
  if (!messages.is_array() || messages.empty())
    return invalid("messages: not an array with at least one message");
  Json out = messages;
  for (std::size_t i = 0; i < out.size(); ++i) {
    Status normalized = normalize_message(out[i]);
    if (!normalized) return std::move(normalized).error().within("messages[" + std::to_string(i) + "]");
  }
  return out;
}

Result<RenderedChat> render_chat(const Tokenizer& tokenizer, TemplateHelper& helper,
                                 const std::string& chat_template, const ChatInput& input) {
  WISP_TRY(check_depth(input.tools, "tools"));
  WISP_TRY(check_depth(input.kwargs, "template variables"));
  WISP_ASSIGN(Json messages, normalize_messages(input.messages));
  const Json context = make_context(input, messages);
  PromptGuard guard(tokenizer, context);
  bool type_error = false;
  Result<std::string> rendered = render_guarded(guard, helper, chat_template, input, context, type_error);
  if (!rendered && type_error) {
    Json plain = without_null_and_objects(messages);
    if (plain != messages) {
      rendered = render_guarded(guard, helper, chat_template, input, make_context(input, std::move(plain)),
                                type_error);
    }
  }
  if (!rendered) return std::move(rendered).error();
  if (rendered->size() > Tokenizer::kMaxTextBytes) {
    return invalid("chat template: a prompt of " + std::to_string(rendered->size()) + " bytes, at most " +
                   std::to_string(Tokenizer::kMaxTextBytes) + " can be encoded");
  }
  return RenderedChat(tokenizer, std::move(guard), std::move(*rendered));
}

Result<std::optional<std::vector<std::uint32_t>>> RenderedChat::encode_up_to(std::size_t max_ids) const {
  using Ids = std::optional<std::vector<std::uint32_t>>;
  std::vector<std::uint32_t> ids;
  for (const Segment& segment : tokenizer_.split_control(text_)) {
    if (ids.size() == max_ids) return Ids();
    if (segment.id) {
      ids.push_back(*segment.id);
      continue;
    }
    const std::string ordinary =
        guard_.mend(std::string_view(text_).substr(segment.begin, segment.end - segment.begin));
    WISP_ASSIGN(const auto part,
                tokenizer_.encode_up_to(max_ids - ids.size(), ordinary, false, segment.begin == 0));
    if (!part) return Ids();
    ids.insert(ids.end(), part->begin(), part->end());
  }
  return Ids(std::move(ids));
}

}  // namespace wisp::text
