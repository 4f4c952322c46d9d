#include "services/gateway/openai_api.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <limits>

#include "services/gateway/request_fields.hpp"
#include "services/gateway/text/stop_matcher.hpp"

namespace wisp::gateway {

namespace {

std::string dumped(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string_view type_of(int status) {
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

void read_stop(FieldReader& fields, std::vector<std::string>& out) {
  const Json* v = fields.find("stop");
  if (v == nullptr || fields.failed()) return;
  if (v->is_string()) {
    out.push_back(v->get<std::string>());
  } else if (v->is_array()) {
    for (const Json& s : *v) {
      if (!s.is_string()) return fields.fail("stop", "must be a string or an array of strings");
      out.push_back(s.get<std::string>());
    }
  } else {
    return fields.fail("stop", "must be a string or an array of strings");
  }
  const auto matcher = text::StopMatcher::create(out);
  if (!matcher.ok()) fields.fail("stop", matcher.error().text);
}

void read_seed(FieldReader& fields, std::optional<std::uint64_t>& out) {
  const Json* v = fields.find("seed");
  if (v == nullptr || fields.failed()) return;
  if (!v->is_number_integer()) return fields.fail("seed", "must be an integer of 64 bits");
  out =
      v->is_number_unsigned() ? v->get<std::uint64_t>() : static_cast<std::uint64_t>(v->get<std::int64_t>());
}

void read_penalties(FieldReader& fields, ApiRequest& r) {
  std::optional<float> presence, frequency;
  fields.real("presence_penalty", -2.0, 2.0, presence);
  fields.real("frequency_penalty", -2.0, 2.0, frequency);
  r.presence_penalty = presence.value_or(0.0f);
  r.frequency_penalty = frequency.value_or(0.0f);
  fields.real("repetition_penalty", model::kLeastRepetitionPenalty, model::kMostRepetitionPenalty,
              r.repetition_penalty);
}

void read_sampling(FieldReader& fields, ApiRequest& r) {
  fields.real("temperature", 0.0, 2.0, r.temperature);
  fields.real("top_p", 0.0, 1.0, r.top_p);
  if (!fields.failed() && r.top_p && !(*r.top_p > 0.0f))
    fields.fail("top_p", "must be more than 0 and at most 1");
  fields.real("min_p", 0.0, 1.0, r.min_p);
  // -1 is how other servers write "off".
  std::optional<std::int64_t> k;
  fields.integer("top_k", -1, std::numeric_limits<std::uint32_t>::max(), k);
  if (k) r.top_k = static_cast<std::uint32_t>(std::max<std::int64_t>(*k, 0));
  read_penalties(fields, r);
  read_seed(fields, r.seed);
}

void read_max_tokens(FieldReader& fields, ApiRequest& r) {
  for (const std::string_view name : {"max_tokens", "max_completion_tokens"}) {
    std::optional<std::int64_t> n;
    fields.integer(name, 1, std::numeric_limits<std::uint32_t>::max(), n);
    if (n) r.max_tokens = static_cast<std::uint32_t>(*n);
  }
}

/// A boolean and a number in the chat API, one number in the older one, where even 0 asks for the drawn
/// token's own.
void read_logprobs(FieldReader& fields, ApiRequest& r) {
  const bool chat = r.endpoint == Endpoint::kChat;
  bool asked = false;
  if (chat) fields.boolean("logprobs", asked);
  std::optional<std::int64_t> top;
  fields.integer(chat ? "top_logprobs" : "logprobs", 0, shm::kMostTopLogprobs, top);
  if (chat && !asked && top.value_or(0) != 0)
    return fields.fail("top_logprobs", "needs \"logprobs\": true beside it");
  if (chat ? asked : top.has_value()) r.logprobs = 1 + static_cast<std::uint32_t>(top.value_or(0));
}

void read_stream(FieldReader& fields, ApiRequest& r) {
  fields.boolean("stream", r.stream);
  const Json* options = fields.find("stream_options");
  if (options == nullptr || fields.failed()) return;
  if (!options->is_object()) return fields.fail("stream_options", "must be an object");
  const auto usage = options->find("include_usage");
  if (usage == options->end() || usage->is_null()) return;
  if (!usage->is_boolean()) return fields.fail("stream_options.include_usage", "must be true or false");
  r.include_usage = usage->get<bool>();
}

/// Text, one text in an array, or an array of ids.
void read_prompt(FieldReader& fields, ApiRequest& r) {
  const Json* v = fields.find("prompt");
  if (fields.failed()) return;
  if (v == nullptr) return fields.fail("prompt", "is missing");
  if (v->is_string()) {
    r.prompt = v->get<std::string>();
    return;
  }
  if (!v->is_array()) return fields.fail("prompt", "must be a string or an array of token ids");
  if (v->empty()) return fields.fail("prompt", "is empty; at least one token is needed");
  if (v->front().is_string()) {
    if (v->size() > 1)
      return fields.fail("prompt", "holds several texts; this server answers one per request");
    r.prompt = v->front().get<std::string>();
    return;
  }
  r.prompt_ids.reserve(v->size());
  for (std::size_t i = 0; i < v->size(); ++i) {
    const Json& id = (*v)[i];
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max())
      return fields.fail("prompt[" + std::to_string(i) + "]", "must be a token id");
    r.prompt_ids.push_back(static_cast<std::uint32_t>(id.get<std::uint64_t>()));
  }
}

void read_chat(FieldReader& fields, ApiRequest& r) {
  if (fields.failed()) return;
  const Json* messages = fields.find("messages");
  if (messages == nullptr) return fields.fail("messages", "is missing");
  auto checked = read_messages(*messages);
  if (auto* e = std::get_if<ApiError>(&checked)) return fields.fail(e->param, e->message);
  r.messages = std::move(std::get<Json>(checked));
  const Json* extra = fields.find("chat_template_kwargs");
  if (extra == nullptr) return;
  if (!extra->is_object()) return fields.fail("chat_template_kwargs", "must be an object");
  r.template_extra = *extra;
}

/// `room`: of this run.
ApiError no_room_for_logprobs(const ApiRequest& r, std::uint32_t room) {
  const std::string wanted = std::to_string(r.logprobs - 1);
  if (room == 0) return bad_field("logprobs", "needs a server that was started with --logprobs " + wanted);
  return bad_field(r.endpoint == Endpoint::kChat ? "top_logprobs" : "logprobs",
                   "is " + wanted + ", but this server was started with --logprobs " +
                       std::to_string(room - 1) + "; ask for no more, or start it with --logprobs " + wanted);
}

}  // namespace

std::string error_body(const ApiError& e) {
  Json error;
  error["message"] = e.param.empty() ? e.message : e.param + ": " + e.message;
  error["type"] = type_of(e.status);
  error["param"] = e.param.empty() ? Json() : Json(e.param);
  error["code"] = e.code.empty() ? Json() : Json(e.code);
  Json body;
  body["error"] = std::move(error);
  return dumped(body);
}

ApiError bad_field(std::string param, std::string message) {
  return {400, std::move(message), std::move(param), "invalid_value", 0};
}

ApiError context_exceeded(std::string param, const std::string& message) {
  return {400, message + "; shorten it or start the server with a larger --ctx", std::move(param),
          "context_length_exceeded", 0};
}

ApiError api_error(const Error& e) {
  switch (e.code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kUnsupported:
      return {400, e.text, "", "", 0};
    case ErrorCode::kNotFound:
      return {404, e.text, "", "", 0};
    case ErrorCode::kExhausted:
      return {400, e.text, "", "too_large", 0};
    case ErrorCode::kUnavailable:
    case ErrorCode::kInterrupted:
      return {503, e.text, "", "unavailable", 1};
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt:
      break;
  }
  return {500, e.text, "", "", 0};
}

ApiResult<ApiRequest> parse_request(Endpoint endpoint, std::string_view body, std::string_view model) {
  auto read = read_body(body);
  if (auto* e = std::get_if<ApiError>(&read)) return std::move(*e);
  const Json& object = std::get<Json>(read);
  FieldReader fields(object);
  ApiRequest r;
  r.endpoint = endpoint;
  if (const Json* name = fields.find("model")) {
    if (!name->is_string()) return bad_field("model", "must be a string");
    const auto& asked = name->get_ref<const std::string&>();
    if (!asked.empty() && asked != model)
      return ApiError{404,
                      "\"" + asked + "\" is not served here; this server has \"" + std::string(model) + "\"",
                      "model", "model_not_found", 0};
  }
  fields.refuse_unsupported(endpoint);
  read_max_tokens(fields, r);
  read_sampling(fields, r);
  read_logprobs(fields, r);
  read_stop(fields, r.stop);
  read_stream(fields, r);
  fields.boolean("ignore_eos", r.ignore_eos);
  fields.boolean("return_token_ids", r.return_token_ids);
  fields.boolean("write_logits", r.write_logits);
  if (endpoint == Endpoint::kChat)
    read_chat(fields, r);
  else
    read_prompt(fields, r);
  if (fields.failed()) return fields.take_error();
  return r;
}

ApiResult<shm::RequestParams> settle(const ApiRequest& r, const model::GenerationDefaults& defaults,
                                     const Limits& limits, std::uint64_t drawn_seed, std::uint64_t now_s,
                                     const std::vector<std::uint32_t>& prompt) {
  const std::string field = r.endpoint == Endpoint::kChat ? "messages" : "prompt";
  if (prompt.empty()) return bad_field(field, "is empty; at least one token is needed");
  if (prompt.size() >= limits.ctx) {
    return context_exceeded(field, "has " + std::to_string(prompt.size()) +
                                       " tokens, but the context holds " + std::to_string(limits.ctx) +
                                       " with the answer");
  }
  for (std::size_t i = 0; limits.vocab != 0 && i < prompt.size(); ++i) {
    if (prompt[i] >= limits.vocab)
      return bad_field(r.prompt_ids.empty() ? field : field + "[" + std::to_string(i) + "]",
                       (r.prompt_ids.empty() ? "makes id " : "is ") + std::to_string(prompt[i]) +
                           ", but this model's ids end at " + std::to_string(limits.vocab - 1));
  }
  if (r.write_logits && !limits.logits)
    return bad_field("write_logits", "needs a server that was started with --logits DIR");
  if (r.logprobs > limits.logprobs) return no_room_for_logprobs(r, limits.logprobs);

  const auto room = static_cast<std::uint32_t>(limits.ctx - prompt.size());
  const std::uint32_t wanted =
      r.max_tokens.value_or(limits.default_max_all ? room : std::min(kDefaultMaxTokens, room));
  shm::RequestParams p;
  p.temperature = r.temperature.value_or(defaults.sample ? defaults.temperature : 0.0f);
  p.top_p = r.top_p.value_or(defaults.top_p);
  p.min_p = r.min_p.value_or(defaults.min_p);
  p.top_k = r.top_k.value_or(defaults.top_k);
  p.presence_penalty = r.presence_penalty;
  p.frequency_penalty = r.frequency_penalty;
  p.repetition_penalty = r.repetition_penalty.value_or(defaults.repetition_penalty);
  p.seed = r.seed.value_or(p.temperature > 0.0f ? drawn_seed : 0);
  p.flags = (r.ignore_eos ? std::uint32_t{shm::kIgnoreEos} : 0u) |
            (r.write_logits ? std::uint32_t{shm::kWriteLogits} : 0u);
  p.max_tokens = std::min(wanted, room);
  p.prompt_tokens = static_cast<std::uint32_t>(prompt.size());
  p.eos_count = static_cast<std::uint32_t>(std::min<std::size_t>(defaults.eos.size(), shm::kMaxEos));
  std::copy_n(defaults.eos.begin(), p.eos_count, p.eos);
  p.created_s = now_s;
  p.logprobs = r.logprobs;
  return p;
}

}  // namespace wisp::gateway
