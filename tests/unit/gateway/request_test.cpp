#include <gtest/gtest.h>

#include <string>

#include "services/gateway/openai_api.hpp"

namespace wisp::gateway {
namespace {

constexpr const char* kChatHead = R"({"messages":[{"role":"user","content":"hi"}])";
constexpr const char* kTextHead = R"({"prompt":"hi")";

ApiResult<ApiRequest> parse(Endpoint e, const std::string& body) {
  return parse_request(e, body, "pocket");
}

ApiRequest accepted(Endpoint e, const std::string& body) {
  auto r = parse(e, body);
  if (const auto* error = std::get_if<ApiError>(&r)) {
    ADD_FAILURE() << body << " refused: " << error->param << ": " << error->message;
    return {};
  }
  return std::get<ApiRequest>(std::move(r));
}

struct Refusal {
  const char* more;  ///< fields after the head
  const char* param;
};

void expect_refused(Endpoint e, const std::string& body, const std::string& param, int status = 400) {
  auto r = parse(e, body);
  const auto* error = std::get_if<ApiError>(&r);
  ASSERT_NE(error, nullptr) << body << " was accepted";
  EXPECT_EQ(error->param, param) << body << ": " << error->message;
  EXPECT_EQ(error->status, status) << body;
  EXPECT_FALSE(error->message.empty());
}

TEST(Request, EveryFieldIsRead) {
  const ApiRequest r = accepted(Endpoint::kChat,
                                R"({"model":"pocket","messages":[{"role":"system","content":"be brief"},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{}}]},
          {"role":"assistant","content":null,"tool_calls":[]},{"role":"developer","content":"c"}],
          "max_tokens":3,"max_completion_tokens":5,"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"seed":18446744073709551615,
          "stop":["x","yz"],"stream":true,"stream_options":{"include_usage":true},"n":1,"ignore_eos":true,
          "return_token_ids":true,"write_logits":true,"chat_template_kwargs":{"enable_thinking":false}})");
  EXPECT_EQ(r.messages.size(), 4u);
  EXPECT_EQ(r.messages[3]["role"], "system");
  EXPECT_EQ(r.max_tokens, 5u);
  EXPECT_EQ(r.temperature, 0.5f);
  EXPECT_EQ(r.top_p, 0.9f);
  EXPECT_EQ(r.top_k, 7u);
  EXPECT_EQ(r.min_p, 0.1f);
  EXPECT_EQ(r.seed, ~0ULL);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_TRUE(r.stream && r.include_usage && r.ignore_eos && r.return_token_ids && r.write_logits);
  EXPECT_EQ(r.template_extra["enable_thinking"], false);
}

TEST(Request, NullsAndUnknownFieldsPass) {
  const ApiRequest r = accepted(
      Endpoint::kChat,
      std::string(kChatHead) +
          R"(,"max_tokens":null,"temperature":null,"stop":null,"stream":null,"stream_options":null,"n":null,
                              "logit_bias":{},"tools":[],"tool_choice":"none","logprobs":false,"presence_penalty":0,
                              "frequency_penalty":0.0,"response_format":{"type":"text"},"user":"me","store":false,
                              "metadata":{"deep":[[[1]]]},"no_such_field":1})");
  EXPECT_FALSE(r.max_tokens || r.temperature || r.seed || r.stream);
}

TEST(Request, Logprobs) {
  const auto chat = [](const char* more) {
    return accepted(Endpoint::kChat, std::string(kChatHead) + more + "}").logprobs;
  };
  EXPECT_EQ(chat(""), 0u);
  EXPECT_EQ(chat(R"(,"logprobs":false,"top_logprobs":0)"), 0u);
  EXPECT_EQ(chat(R"(,"logprobs":true)"), 1u);
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":null)"), 1u);
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":20)"), 21u);
  const auto text = [](const char* more) {
    return accepted(Endpoint::kCompletion, std::string(kTextHead) + more + "}").logprobs;
  };
  EXPECT_EQ(text(""), 0u);
  EXPECT_EQ(text(R"(,"logprobs":null,"top_logprobs":0)"), 0u);
  EXPECT_EQ(text(R"(,"logprobs":0)"), 1u);
  EXPECT_EQ(text(R"(,"logprobs":20)"), 21u);
}

TEST(Request, PromptForms) {
  EXPECT_EQ(accepted(Endpoint::kCompletion, R"({"prompt":"hi"})").prompt, "hi");
  EXPECT_EQ(accepted(Endpoint::kCompletion, R"({"prompt":["hi"]})").prompt, "hi");
  const ApiRequest ids = accepted(Endpoint::kCompletion, R"({"prompt":[1,2,4294967295]})");
  EXPECT_FALSE(ids.prompt);
  EXPECT_EQ(ids.prompt_ids, (std::vector<std::uint32_t>{1, 2, 4294967295u}));
  EXPECT_EQ(accepted(Endpoint::kCompletion, R"({"prompt":"x","stop":"end","seed":-1})").seed, ~0ULL);
}

TEST(Request, RefusalsCommonToBothEndpoints) {
  const Refusal table[] = {
      {R"(,"max_tokens":0)", "max_tokens"},
      {R"(,"max_tokens":-5)", "max_tokens"},
      {R"(,"max_tokens":1.5)", "max_tokens"},
      {R"(,"max_tokens":"9")", "max_tokens"},
      {R"(,"max_tokens":99999999999999999999)", "max_tokens"},
      {R"(,"max_completion_tokens":0)", "max_completion_tokens"},
      {R"(,"temperature":-0.1)", "temperature"},
      {R"(,"temperature":2.1)", "temperature"},
      {R"(,"temperature":"hot")", "temperature"},
      {R"(,"top_p":0)", "top_p"},
      {R"(,"top_p":1.1)", "top_p"},
      {R"(,"min_p":-1)", "min_p"},
      {R"(,"min_p":2)", "min_p"},
      {R"(,"top_k":-2)", "top_k"},
      {R"(,"top_k":1.5)", "top_k"},
      {R"(,"seed":1.5)", "seed"},
      {R"(,"seed":"s")", "seed"},
      {R"(,"stop":1)", "stop"},
      {R"(,"stop":["a",1])", "stop"},
      {R"(,"stop":"")", "stop"},
      {R"(,"stream":1)", "stream"},
      {R"(,"stream_options":true)", "stream_options"},
      {R"(,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"(,"n":2)", "n"},
      {R"(,"n":0)", "n"},
      {R"(,"n":"1")", "n"},
      {R"(,"best_of":2)", "best_of"},
      {R"(,"logit_bias":{"1":5})", "logit_bias"},
      {R"(,"presence_penalty":2.1)", "presence_penalty"},
      {R"(,"presence_penalty":"much")", "presence_penalty"},
      {R"(,"frequency_penalty":-2.5)", "frequency_penalty"},
      {R"(,"repetition_penalty":0)", "repetition_penalty"},
      {R"(,"repetition_penalty":-1)", "repetition_penalty"},
      {R"(,"tools":[{"type":"function"}])", "tools"},
      {R"(,"tool_choice":"required")", "tool_choice"},
      {R"(,"functions":[{}])", "functions"},
      {R"(,"response_format":{"type":"json_object"})", "response_format"},
      {R"(,"echo":true)", "echo"},
      {R"(,"suffix":"z")", "suffix"},
      {R"(,"stop_token_ids":[3])", "stop_token_ids"},
      {R"(,"min_tokens":3)", "min_tokens"},
      {R"(,"top_logprobs":2)", "top_logprobs"},
      {R"(,"top_logprobs":-1)", "top_logprobs"},
      {R"(,"logprobs":"yes")", "logprobs"},
      {R"(,"ignore_eos":1)", "ignore_eos"},
      {R"(,"return_token_ids":"yes")", "return_token_ids"},
      {R"(,"write_logits":0)", "write_logits"},
      {R"(,"model":7)", "model"},
  };
  for (const Refusal& r : table) {
    expect_refused(Endpoint::kChat, std::string(kChatHead) + r.more + "}", r.param);
    expect_refused(Endpoint::kCompletion, std::string(kTextHead) + r.more + "}", r.param);
  }
  for (const char* more : {R"(,"logprobs":1)", R"(,"logprobs":0)"})
    expect_refused(Endpoint::kChat, std::string(kChatHead) + more + "}", "logprobs");
  for (const char* more : {R"("top_logprobs":2)", R"("logprobs":false,"top_logprobs":1)",
                           R"("logprobs":true,"top_logprobs":21)", R"("logprobs":true,"top_logprobs":-1)",
                           R"("logprobs":true,"top_logprobs":1.5)", R"("logprobs":true,"top_logprobs":true)"})
    expect_refused(Endpoint::kChat, std::string(kChatHead) + "," + more + "}", "top_logprobs");
  for (const char* more : {R"("logprobs":21)", R"("logprobs":-1)", R"("logprobs":true)", R"("logprobs":1.5)"})
    expect_refused(Endpoint::kCompletion, std::string(kTextHead) + "," + more + "}", "logprobs");
  expect_refused(Endpoint::kChat, std::string(kChatHead) + R"(,"model":"gpt"})", "model", 404);
}

TEST(Request, RefusalsOfMessagesAndPrompts) {
  const Refusal chat[] = {
      {"{}", "messages"},
      {R"({"messages":null})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":"hi"})", "messages"},
      {R"({"messages":[1]})", "messages[0]"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"wizard","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"user"}]})", "messages[1].content"},
      {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text"},
      {R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":1})", "chat_template_kwargs"},
  };
  for (const Refusal& r : chat) expect_refused(Endpoint::kChat, r.more, r.param);
  const Refusal text[] = {
      {"{}", "prompt"},
      {R"({"prompt":5})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":["a","b"]})", "prompt"},
      {R"({"prompt":[1,-2]})", "prompt[1]"},
      {R"({"prompt":[1,2.5]})", "prompt[1]"},
      {R"({"prompt":[4294967296]})", "prompt[0]"},
      {R"({"prompt":[[1,2]]})", "prompt[0]"},
  };
  for (const Refusal& r : text) expect_refused(Endpoint::kCompletion, r.more, r.param);
}

TEST(Request, RefusalsOfTheBody) {
  for (const std::string body : {"", "{", "[]", "7", "{\"a\":1} x", "{\"prompt\":\"\xff\"}",
                                 "{\"prompt\":\"\\ud800\"}", "{\"a\":1e999}"})
    expect_refused(Endpoint::kCompletion, body, "");
  expect_refused(Endpoint::kCompletion, std::string(100000, '['), "");
  expect_refused(Endpoint::kCompletion, "{\"a\":" + std::string(64, '[') + std::string(64, ']') + "}", "");
}

TEST(Request, ErrorHasOpenAiForm) {
  EXPECT_EQ(
      error_body({400, "must be a number", "top_p", "invalid_value", 0}),
      R"({"error":{"message":"top_p: must be a number","type":"invalid_request_error","param":"top_p","code":"invalid_value"}})");
  EXPECT_EQ(error_body({503, "down", "", "", 0}),
            R"({"error":{"message":"down","type":"server_error","param":null,"code":null}})");
}

// --- settle ---

const std::vector<std::uint32_t> kPrompt{1, 2, 3};

shm::RequestParams settled(const std::string& more, const model::GenerationDefaults& d,
                           Limits limits = {10000, 100, false, false}) {
  const ApiRequest r = accepted(Endpoint::kCompletion, R"({"prompt":[1,2,3])" + more + "}");
  auto p = settle(r, d, limits, 77, 5, kPrompt);
  if (const auto* e = std::get_if<ApiError>(&p)) {
    ADD_FAILURE() << e->message;
    return {};
  }
  return std::get<shm::RequestParams>(p);
}

TEST(Settle, GreedyByDefault) {
  model::GenerationDefaults d;
  d.temperature = 0.6f;
  d.eos = {8, 9};
  const auto p = settled("", d);
  EXPECT_EQ(p.temperature, 0.0f);
  EXPECT_EQ(p.seed, 0u);
  EXPECT_EQ(p.max_tokens, 4096u);
  EXPECT_EQ(p.prompt_tokens, 3u);
  EXPECT_EQ(p.eos_count, 2u);
  EXPECT_EQ(p.eos[1], 9u);
  EXPECT_EQ(p.created_s, 5u);
}

TEST(Settle, ModelDefaultsAndOverrides) {
  model::GenerationDefaults d;
  d.sample = true;
  d.temperature = 0.6f;
  d.top_k = 20;
  d.top_p = 0.95f;
  auto p = settled("", d);
  EXPECT_EQ(p.temperature, 0.6f);
  EXPECT_EQ(p.top_k, 20u);
  EXPECT_EQ(p.seed, 77u);
  p = settled(R"(,"temperature":0,"top_k":-1)", d);
  EXPECT_EQ(p.temperature, 0.0f);
  EXPECT_EQ(p.top_k, 0u);
  p = settled(R"(,"temperature":1.5,"seed":4)", model::GenerationDefaults{});
  EXPECT_EQ(p.temperature, 1.5f);
  EXPECT_EQ(p.seed, 4u);
}

TEST(Settle, Penalties) {
  model::GenerationDefaults d;
  EXPECT_FALSE(settled("", d).penalises());
  EXPECT_FALSE(
      settled(R"(,"presence_penalty":null,"frequency_penalty":0,"repetition_penalty":1)", d).penalises());
  auto p = settled(R"(,"presence_penalty":-2,"frequency_penalty":0.5,"repetition_penalty":1.25)", d);
  EXPECT_EQ(p.presence_penalty, -2.0f);
  EXPECT_EQ(p.frequency_penalty, 0.5f);
  EXPECT_EQ(p.repetition_penalty, 1.25f);
  d.repetition_penalty = 1.5f;
  EXPECT_EQ(settled("", d).repetition_penalty, 1.5f);
  EXPECT_EQ(settled(R"(,"repetition_penalty":1)", d).repetition_penalty, 1.0f);
}

TEST(Settle, RoomDecidesTheLength) {
  const model::GenerationDefaults d;
  EXPECT_EQ(settled("", d, {10, 0, false, false}).max_tokens, 7u);
  EXPECT_EQ(settled(R"(,"max_tokens":100)", d, {10, 0, false, false}).max_tokens, 7u);
  EXPECT_EQ(settled(R"(,"max_tokens":2)", d, {10, 0, false, false}).max_tokens, 2u);
  EXPECT_EQ(settled("", d, {10000, 0, false, true}).max_tokens, 9997u);
}

TEST(Settle, Refusals) {
  const ApiRequest r = accepted(Endpoint::kCompletion, R"({"prompt":[1,2,3]})");
  const model::GenerationDefaults d;
  auto full = settle(r, d, {3, 100, false, false}, 0, 0, kPrompt);
  ASSERT_TRUE(std::holds_alternative<ApiError>(full));
  EXPECT_EQ(std::get<ApiError>(full).code, "context_length_exceeded");
  EXPECT_NE(std::get<ApiError>(full).message.find("3 tokens"), std::string::npos);
  EXPECT_TRUE(std::holds_alternative<ApiError>(settle(r, d, {10, 3, false, false}, 0, 0, kPrompt)));
  EXPECT_TRUE(std::holds_alternative<ApiError>(settle(r, d, {10, 100, false, false}, 0, 0, {})));
  const ApiRequest logits = accepted(Endpoint::kCompletion, R"({"prompt":[1,2,3],"write_logits":true})");
  auto none = settle(logits, d, {10, 100, false, false}, 0, 0, kPrompt);
  ASSERT_TRUE(std::holds_alternative<ApiError>(none));
  EXPECT_EQ(std::get<ApiError>(none).param, "write_logits");
  EXPECT_TRUE(
      std::holds_alternative<shm::RequestParams>(settle(logits, d, {10, 100, true, false}, 0, 0, kPrompt)));
}

TEST(Settle, LogprobsNeedRoom) {
  const model::GenerationDefaults d;
  for (const bool chat : {true, false}) {
    ApiRequest r;
    r.endpoint = chat ? Endpoint::kChat : Endpoint::kCompletion;
    r.logprobs = 4;
    const auto at = [&](std::uint32_t room) {
      return settle(r, d, {10, 100, false, false, room}, 0, 0, kPrompt);
    };
    auto none = at(0);
    ASSERT_TRUE(std::holds_alternative<ApiError>(none));
    EXPECT_EQ(std::get<ApiError>(none).param, "logprobs");
    EXPECT_NE(std::get<ApiError>(none).message.find("--logprobs 3"), std::string::npos);
    auto little = at(3);
    ASSERT_TRUE(std::holds_alternative<ApiError>(little));
    EXPECT_EQ(std::get<ApiError>(little).param, chat ? "top_logprobs" : "logprobs");
    EXPECT_NE(std::get<ApiError>(little).message.find("--logprobs 2"), std::string::npos);
    for (const std::uint32_t room : {4u, 21u}) {
      auto enough = at(room);
      ASSERT_TRUE(std::holds_alternative<shm::RequestParams>(enough));
      EXPECT_EQ(std::get<shm::RequestParams>(enough).logprobs, 4u);
    }
    r.logprobs = 0;
    EXPECT_TRUE(std::holds_alternative<shm::RequestParams>(at(0)));
  }
}

}  // namespace
}  // namespace wisp::gateway
