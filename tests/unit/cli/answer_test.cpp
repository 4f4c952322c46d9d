#include "services/cli/answer.hpp"

#include <gtest/gtest.h>

#include "services/cli/table.hpp"
#include "tests/unit/cli/scripted_server.hpp"

namespace wisp::cli {
namespace {

using Json = nlohmann::ordered_json;

TEST(Question, BodyHasWhatWasAskedAndNoMore) {
  Question q;
  q.model = "pocket";
  q.messages = Json::array({{{"role", "user"}, {"content", "What is an \xff apple?"}}});
  const StreamRequest chat = to_request(q, "/s");
  EXPECT_EQ(chat.target, "/v1/chat/completions");
  const Json body = Json::parse(chat.body);
  EXPECT_EQ(body["messages"][0]["content"], "What is an \xEF\xBF\xBD apple?") << "JSON is UTF-8";
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["return_token_ids"], true);
  for (const char* absent :
       {"temperature", "seed", "max_tokens", "top_k", "ignore_eos", "write_logits", "prompt"})
    EXPECT_FALSE(body.contains(absent)) << absent;
  ASSERT_EQ(chat.headers.size(), 1u);
  EXPECT_EQ(chat.headers[0].first, "X-Wisp-Default-Max");
}

TEST(Question, RawAndIds) {
  Question q;
  q.text = "An apple";
  q.sampling.seed = ~std::uint64_t{0};
  q.sampling.temperature = 0.5;
  q.sampling.ignore_eos = true;
  const Json raw = Json::parse(to_request(q, "/s").body);
  EXPECT_EQ(to_request(q, "/s").target, "/v1/completions");
  EXPECT_EQ(raw["prompt"], "An apple");
  EXPECT_EQ(raw["seed"].get<std::uint64_t>(), ~std::uint64_t{0});
  EXPECT_EQ(raw["ignore_eos"], true);
  q.ids = {1, 2, 3};
  EXPECT_EQ(Json::parse(to_request(q, "/s").body)["prompt"], Json({1, 2, 3}));
}

std::string chunk(const std::string& text, int id) {
  return Json{{"choices", Json::array({{{"index", 0},
                                        {"delta", {{"content", text}}},
                                        {"token_ids", {id}},
                                        {"finish_reason", nullptr}}})}}
      .dump();
}

TEST(AnswerReader, PutsAnAnswerTogether) {
  AnswerReader reader(10.0);
  EXPECT_EQ(
      *reader.take(R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})", 10.1),
      "");
  EXPECT_EQ(*reader.take(chunk("app", 5), 10.5), "app");
  EXPECT_EQ(*reader.take(chunk("", 6), 11.0), "");
  EXPECT_EQ(*reader.take(chunk("le", 7), 11.5), "le");
  EXPECT_EQ(*reader.take(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})", 11.6), "");
  EXPECT_EQ(
      *reader.take(
          R"({"choices":[],"usage":{"prompt_tokens":13,"completion_tokens":3,"seed":18446744073709551615}})",
          11.7),
      "");
  StreamEnd end;
  end.request = "99";
  const Answer a = reader.finish(end);
  EXPECT_EQ(a.text, "apple");
  EXPECT_EQ(a.token_ids, (std::vector<std::uint32_t>{5, 6, 7}));
  EXPECT_EQ(a.prompt_tokens, 13u);
  EXPECT_EQ(a.completion_tokens, 3u);
  EXPECT_EQ(a.finish_reason, "stop");
  EXPECT_EQ(a.seed, ~std::uint64_t{0});
  EXPECT_DOUBLE_EQ(a.ttft_s, 0.5);
  EXPECT_DOUBLE_EQ(a.decode_tok_s, 2.0);
}

TEST(AnswerReader, CompletionsAndCancelled) {
  AnswerReader reader(0.0);
  EXPECT_EQ(*reader.take(R"({"choices":[{"text":"x","token_ids":[9]}]})", 1.0), "x");
  StreamEnd end;
  end.interrupted = true;
  const Answer a = reader.finish(end);
  EXPECT_EQ(a.finish_reason, "cancelled");
  EXPECT_EQ(a.completion_tokens, 1u) << "counted, since usage never came";
  EXPECT_EQ(a.decode_tok_s, 0.0);
  EXPECT_FALSE(a.seed.has_value());
}

TEST(AnswerReader, ErrorsInMidStreamAndNonsense) {
  AnswerReader reader(0.0);
  const auto failed = reader.take(R"({"error":{"message":"expert 3 of layer 2 is damaged"}})", 1.0);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().text, "expert 3 of layer 2 is damaged");
  for (const char* nonsense : {"", "[]", "{\"choices\":3}", "{\"choices\":[{\"token_ids\":[\"x\"]}]}"})
    EXPECT_FALSE(reader.take(nonsense, 1.0).ok()) << nonsense;
}

TEST(Ask, AnErrorInMidStreamIsNotTakenUpAgain) {
  const std::string head = "HTTP/1.1 200 OK\r\nX-Wisp-Request: 1\r\n\r\n";
  ScriptedServer server(
      {head + "id: 1/1\ndata: " + chunk("a", 1) + "\n\nid: 1/2\ndata: {\"error\":{\"message\":\"bad\"}}\n\n",
       head + "data: [DONE]\n\n"});
  std::string text;
  const auto answer = ask(
      {}, server.path(), {}, [&](const std::string& t) { text += t; }, nullptr);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().text, "bad");
  EXPECT_EQ(text, "a");
  EXPECT_EQ(server.requests().size(), 1u);
}

RunFigures figures() {
  RunFigures f;
  f.slots = 97;
  f.experts = 256;
  f.accesses = 200;
  f.hits = 150;
  f.expert_bytes_read = 5 << 20;
  f.device_bytes_read = 8 << 20;
  f.ram_budget_bytes = 64 << 20;
  f.ram_peak_bytes = 60 << 20;
  f.profile = "exact";
  return f;
}

TEST(Table, SaysWhatWasGuessedWhereAnythingWas) {
  RunFigures f = figures();
  EXPECT_EQ(table({}, f).find("guessed"), std::string::npos);
  f.drafts.steps = 10;
  f.drafts.ns = 1'000'000'000;
  f.drafts.tokens = 25;
  f.drafts.plain_ns = 2'000'000'000;
  f.drafts.plain_tokens = 30;
  f.drafts.drafted = {10, 8, 4};
  f.drafts.accepted = {9, 4, 2};
  const std::string text = table({}, f);
  EXPECT_NE(text.find("22 tokens, 15 stood   (by place 90 % 50 % 50 %)"), std::string::npos) << text;
  EXPECT_NE(text.find("25.0 tokens per second   (2.50 tokens a pass; plain steps 15.0 tokens per second)"),
            std::string::npos)
      << text;
}

TEST(JsonLine, HasExactlyTheseKeys) {
  Answer a;
  a.text = "two\nlines";
  a.token_ids = {1, 2};
  a.finish_reason = "stop";
  a.seed = 7;
  const std::string line = json_line(a, figures());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Json j = Json::parse(line);
  const std::vector<std::string> wanted{
      "text",           "token_ids",   "prompt_tokens",    "completion_tokens", "finish_reason",
      "seed",           "ttft_s",      "decode_tok_s",     "hit_rate",          "decode_accesses",
      "decode_hits",    "slots",       "experts",          "expert_bytes_read", "device_bytes_read",
      "prefetch",       "speculation", "ram_budget_bytes", "ram_peak_bytes",    "profile",
      "profile_reason", "decode"};
  std::vector<std::string> keys;
  for (const auto& [key, value] : j.items()) keys.push_back(key);
  EXPECT_EQ(keys, wanted);
  EXPECT_EQ(j["hit_rate"], 0.75);
  EXPECT_EQ(j["seed"], 7);
  EXPECT_TRUE(Json::parse(json_line({}, {}))["hit_rate"].is_null());
  EXPECT_TRUE(Json::parse(json_line({}, {}))["decode"]["overhead"].is_null());
  RunFigures f;
  f.decode = {2, 90, 10, 30, 5, 40, 5, 10, 8};
  // Of 100 ns 10 were waits for the drive and 72 arithmetic.
  EXPECT_DOUBLE_EQ(Json::parse(json_line({}, f))["decode"]["overhead"].get<double>(), 0.18);
}

TEST(Table, SaysWhatANewcomerAsks) {
  Answer a;
  a.ttft_s = 0.5;
  a.decode_tok_s = 23.14;
  a.prompt_tokens = 13;
  a.completion_tokens = 29;
  a.seed = 7;
  const std::string text = table(a, figures());
  for (const char* part : {"0.50 s", "13 prompt tokens", "23.1 tokens per second", "75.0 %",
                           "room for 97 of 256", "8 MiB", "60 MiB", "of 64 MiB allowed", "--seed 7"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(Figures, DifferenceSurvivesAReset) {
  RunFigures before = figures();
  RunFigures now = figures();
  now.accesses = 260;
  now.hits = 160;
  EXPECT_EQ(now.since(before).accesses, 60u);
  now.accesses = 10;
  EXPECT_EQ(now.since(before).accesses, 10u);
}

}  // namespace
}  // namespace wisp::cli
