#include <cinttypes>
#include <cstdio>

#include "services/gateway/openai_api.hpp"

namespace wisp::gateway {

namespace {
using Json = nlohmann::ordered_json;

/// The beginning of every object of an answer: {"id":...,"model":"..."
std::string object_head(const AnswerHead& head, std::string_view object) {
  std::string s = "{\"id\":" + json_string(answer_id(head)) + ",\"object\":\"";
  s += object;
  s += "\",\"created\":" + std::to_string(head.created_s) + ",\"model\":" + json_string(head.model);
  return s;
}

std::string ids_json(const std::uint32_t* ids, std::size_t n) {
  std::string s = "[";
  for (std::size_t i = 0; i < n; ++i) {
    if (i != 0) s += ',';
    s += std::to_string(ids[i]);
  }
  return s + "]";
}
}  // namespace

std::string answer_id(const AnswerHead& head) {
  char hex[20];
  std::snprintf(hex, sizeof hex, "%" PRIx64, head.request);
  return (head.endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + std::string(hex);
}

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string usage_json(const Usage& u) {
  return "{\"prompt_tokens\":" + std::to_string(u.prompt_tokens) +
         ",\"completion_tokens\":" + std::to_string(u.completion_tokens) +
         ",\"total_tokens\":" + std::to_string(std::uint64_t{u.prompt_tokens} + u.completion_tokens) +
         ",\"seed\":" + std::to_string(u.seed) + "}";
}

ChunkWriter::ChunkWriter(const AnswerHead& head, bool include_usage)
    : chat_(head.endpoint == Endpoint::kChat),
      head_(object_head(head, chat_ ? "chat.completion.chunk" : "text_completion") + ",\"choices\":["),
      tail_(include_usage ? "],\"usage\":null}" : "]}") {}

std::string ChunkWriter::choice(std::string_view inner, std::string_view reason,
                                std::string_view logprobs) const {
  std::string s = head_ + "{\"index\":0,";
  s += inner;
  s += ",\"logprobs\":";
  s += logprobs;
  s += ",\"finish_reason\":";
  s += reason.empty() ? "null" : json_string(reason);
  return s + "}" + tail_;
}

std::string ChunkWriter::role() const {
  return choice("\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "");
}

std::string ChunkWriter::delta(std::string_view text, const std::uint32_t* token,
                               std::string_view logprobs) const {
  std::string inner =
      chat_ ? "\"delta\":{\"content\":" + json_string(text) + "}" : "\"text\":" + json_string(text);
  if (token != nullptr) inner += ",\"token_ids\":" + ids_json(token, 1);
  return choice(inner, "", logprobs);
}

std::string ChunkWriter::finish(std::string_view rest, std::string_view reason) const {
  if (!chat_) return choice("\"text\":" + json_string(rest), reason);
  return choice(rest.empty() ? "\"delta\":{}" : "\"delta\":{\"content\":" + json_string(rest) + "}", reason);
}

std::string ChunkWriter::usage(const Usage& u) const {
  return head_ + "],\"usage\":" + usage_json(u) + "}";
}

std::string answer_body(const AnswerHead& head, std::string_view text, std::string_view reason,
                        const Usage& u, const std::vector<std::uint32_t>* ids, std::string_view logprobs) {
  const bool chat = head.endpoint == Endpoint::kChat;
  std::string s =
      object_head(head, chat ? "chat.completion" : "text_completion") + ",\"choices\":[{\"index\":0,";
  s += chat ? "\"message\":{\"role\":\"assistant\",\"content\":" + json_string(text) + ",\"refusal\":null}"
            : "\"text\":" + json_string(text);
  if (ids != nullptr) s += ",\"token_ids\":" + ids_json(ids->data(), ids->size());
  s += ",\"logprobs\":";
  s += logprobs;
  s += ",\"finish_reason\":" + json_string(reason) + "}],\"usage\":" + usage_json(u) + "}";
  return s;
}

std::string model_json(std::string_view name, std::uint64_t created_s) {
  return "{\"id\":" + json_string(name) + ",\"object\":\"model\",\"created\":" + std::to_string(created_s) +
         ",\"owned_by\":\"wisp\"}";
}

std::string models_body(std::string_view name, std::uint64_t created_s) {
  return "{\"object\":\"list\",\"data\":[" + model_json(name, created_s) + "]}";
}

}  // namespace wisp::gateway
