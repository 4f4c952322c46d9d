#include "services/cli/answer.hpp"

#include <chrono>

namespace wisp::cli {

namespace {

using Json = nlohmann::ordered_json;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class T>
void put(Json& to, const char* key, const std::optional<T>& value) {
  if (value) to[key] = *value;
}

}  // namespace

StreamRequest to_request(const Question& q, const std::string& socket) {
  Json body{{"model", q.model}};
  const bool chat = !q.messages.empty();
  if (chat)
    body["messages"] = q.messages;
  else if (!q.ids.empty())
    body["prompt"] = q.ids;
  else
    body["prompt"] = q.text;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["return_token_ids"] = true;
  const Sampling& s = q.sampling;
  put(body, "max_tokens", s.max_tokens);
  put(body, "temperature", s.temperature);
  put(body, "top_k", s.top_k);
  put(body, "top_p", s.top_p);
  put(body, "min_p", s.min_p);
  put(body, "presence_penalty", s.presence_penalty);
  put(body, "frequency_penalty", s.frequency_penalty);
  put(body, "repetition_penalty", s.repetition_penalty);
  put(body, "seed", s.seed);
  if (s.ignore_eos) body["ignore_eos"] = true;
  if (q.write_logits) body["write_logits"] = true;
  StreamRequest r;
  r.socket = socket;
  r.target = chat ? "/v1/chat/completions" : "/v1/completions";
  // An argument need not be UTF-8, JSON must.
  r.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  r.headers = {{"X-Wisp-Default-Max", "all"}};
  return r;
}

Result<std::string> AnswerReader::take(const std::string& data, double now) {
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object())
    return io_error("the gateway sent an event that is no JSON object: " + data.substr(0, 200));
  try {
    if (json.contains("error")) {
      const Json& e = json["error"];
      return io_error(e.is_object() ? e.value("message", e.dump()) : e.dump());
    }
    if (json.contains("usage") && json["usage"].is_object()) {
      const Json& usage = json["usage"];
      answer_.prompt_tokens = usage.value("prompt_tokens", std::uint64_t{0});
      answer_.completion_tokens = usage.value("completion_tokens", std::uint64_t{0});
      if (usage.contains("seed") && usage["seed"].is_number_integer())
        answer_.seed = usage["seed"].get<std::uint64_t>();
    }
    if (!json.contains("choices") || json["choices"].empty()) return std::string{};
    const Json& choice = json["choices"][0];
    if (choice.contains("token_ids") && choice["token_ids"].is_array() && !choice["token_ids"].empty()) {
      const auto ids = choice["token_ids"].get<std::vector<std::uint32_t>>();
      answer_.token_ids.insert(answer_.token_ids.end(), ids.begin(), ids.end());
      if (tokens_ == 0) first_s_ = now;
      last_s_ = now;
      tokens_ += ids.size();
    }
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string())
      answer_.finish_reason = choice["finish_reason"].get<std::string>();
    std::string text;
    if (choice.contains("delta")) {
      const Json& delta = choice["delta"];
      if (delta.contains("content") && delta["content"].is_string())
        text = delta["content"].get<std::string>();
    } else if (choice.contains("text") && choice["text"].is_string()) {
      text = choice["text"].get<std::string>();
    }
    answer_.text += text;
    return text;
  } catch (const Json::exception& e) {
    return io_error("the gateway sent an event of another shape (" + std::string(e.what()) + ")");
  }
}

Answer AnswerReader::finish(const StreamEnd& end) {
  answer_.request = end.request;
  answer_.resumes = end.resumes;
  if (end.interrupted) answer_.finish_reason = "cancelled";
  if (answer_.completion_tokens == 0) answer_.completion_tokens = tokens_;
  if (tokens_ > 0) answer_.ttft_s = first_s_ - start_s_;
  if (tokens_ > 1 && last_s_ > first_s_)
    answer_.decode_tok_s = static_cast<double>(tokens_ - 1) / (last_s_ - first_s_);
  return std::move(answer_);
}

Result<Answer> ask(const Question& q, const std::string& socket, const StreamWorld& world,
                   const std::function<void(const std::string&)>& text,
                   const std::function<void(std::string_view)>& comment) {
  AnswerReader reader(now_s());
  Status failed;
  StreamHandlers handlers;
  handlers.event = [&](const std::string& data) {
    if (!failed.ok()) return;
    auto added = reader.take(data, now_s());
    if (!added.ok())
      failed = std::move(added).error();
    else if (!added->empty())
      text(*added);
  };
  handlers.comment = comment;
  // A stream that ended in an error is not taken up again.
  StreamWorld guarded = world;
  guarded.check = [&]() -> Status { return failed.ok() ? world.check() : failed; };
  WISP_ASSIGN(const StreamEnd end, stream(to_request(q, socket), handlers, guarded));
  WISP_TRY(std::move(failed));
  return reader.finish(end);
}

}  // namespace wisp::cli
