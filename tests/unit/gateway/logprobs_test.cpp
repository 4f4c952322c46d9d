#include "services/gateway/logprobs.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "services/gateway/stream.hpp"
#include "tests/unit/gateway/fake_engine.hpp"

/// Log-probabilities as the API writes them: JSON of what the journal tells, streamed, whole and replayed.
namespace wisp::gateway {
namespace {

using nlohmann::json;
using shm::Finish;
using Words = std::vector<std::uint32_t>;

const std::vector<std::string> kWords{"a", " b", "\"", "\xE2\x82", "\xAC", "END", "", "x\xFFy"};
std::string_view bytes_of(std::uint32_t id) {
  return id < kWords.size() ? std::string_view(kWords[id]) : std::string_view();
}
std::uint32_t word(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

TEST(LogprobsWriter, ChatIsExact) {
  LogprobsWriter w(Endpoint::kChat, bytes_of);
  w.add(1, Words{word(-0.5f), 0, word(-0.25f), 1, word(-0.5f)}, 0);
  w.add(3, Words{word(-1e-5f)}, 7);
  EXPECT_EQ(
      w.take(),
      R"({"content":[{"token":" b","logprob":-0.5,"bytes":[32,98],"top_logprobs":[{"token":"a","logprob":-0.25,"bytes":[97]},{"token":" b","logprob":-0.5,"bytes":[32,98]}]},{"token":")"
      "\xEF\xBF\xBD"
      R"(","logprob":-1e-05,"bytes":[226,130],"top_logprobs":[]}],"refusal":null})");
  EXPECT_EQ(w.take(), R"({"content":[],"refusal":null})") << "what was taken is gone";
}

TEST(LogprobsWriter, CompletionIsExact) {
  LogprobsWriter w(Endpoint::kCompletion, bytes_of);
  w.add(2, Words{word(-2.0f), 0, word(-0.125f)}, 0);
  w.add(0, Words{word(0.0f), 0, word(0.0f)}, 1);
  EXPECT_EQ(
      w.take(),
      R"({"text_offset":[0,1],"token_logprobs":[-2,0],"tokens":["\"","a"],"top_logprobs":[{"a":-0.125},{"a":0}]})");
  w.add(0, Words{word(-3.5f)}, 9);
  EXPECT_EQ(w.take(), R"({"text_offset":[9],"token_logprobs":[-3.5],"tokens":["a"],"top_logprobs":null})");
}

/// Keys of an object are told apart: halves of characters and control tokens have no text of their own.
TEST(LogprobsWriter, NoLikelyTokenHidesAnother) {
  LogprobsWriter w(Endpoint::kCompletion, bytes_of);
  w.add(3, Words{word(-1.0f), 3, word(-1.0f), 4, word(-2.0f), 6, word(-3.0f), 900, word(-4.0f)}, 0);
  const json told = json::parse(w.take());
  EXPECT_EQ(told["top_logprobs"][0],
            (json{{"token_id:3", -1.0}, {"token_id:4", -2.0}, {"token_id:6", -3.0}, {"token_id:900", -4.0}}));
  EXPECT_EQ(told["tokens"][0], "token_id:3") << "its own is found by its name";
}

TEST(LogprobsWriter, LeavesOutWhatTheVocabularyDoesNotHave) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    LogprobsWriter w(endpoint, bytes_of);
    w.add(0, Words{word(-1.0f), 0, word(-1.0f), shm::kNoToken, word(-9999.0f)}, 0);
    const json j = json::parse(w.take());
    EXPECT_EQ((endpoint == Endpoint::kChat ? j["content"][0]["top_logprobs"] : j["top_logprobs"][0]).size(),
              1u);
  }
}

TEST(LogprobsWriter, NumbersReadBackAsTheyWere) {
  std::mt19937 random(5);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const std::string text = float_json(value);
    ASSERT_TRUE(json::accept(text)) << text;
    ASSERT_EQ(std::strtof(text.c_str(), nullptr), std::isfinite(value) ? value : -9999.0f) << text;
  }
  EXPECT_EQ(float_json(-std::numeric_limits<float>::infinity()), "-9999");
}

// --- a stream, and the whole answer ---

/// What the journal tells of a token here: of itself and of the two before it in the vocabulary.
Words told_of(std::uint32_t token, std::uint32_t asked) {
  Words out{word(-0.1f * static_cast<float>(token + 1))};
  for (std::uint32_t n = 1; n < asked; ++n)
    out.insert(out.end(), {(token + n) % 7, word(-0.3f * static_cast<float>(n))});
  return out;
}

std::string stream_of(Endpoint endpoint, const Words& tokens, std::uint32_t asked,
                      const std::vector<std::string>& stop = {},
                      std::optional<std::uint64_t> received = std::nullopt) {
  shm::RequestParams params;
  params.eos_count = 1;
  params.eos[0] = 6;
  params.logprobs = asked;
  EventStream events({"m", endpoint, stop, false, true}, 10, params, bytes_of, received);
  std::string out;
  events.begin(out);
  for (const std::uint32_t t : tokens) {
    events.token(t, asked == 0 ? Words{} : told_of(t, asked), out);
    if (events.stopped()) break;
  }
  events.end(Finish::kStop, {}, out);
  return out;
}

std::vector<json> choices(const std::string& stream) {
  std::vector<json> out;
  for (std::size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; ++at)
    out.push_back(json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6))["choices"][0]);
  return out;
}

TEST(LogprobsStream, EachEventHasItsTokensOwn) {
  const Words tokens{0, 1, 3, 4, 2, 6};
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const std::uint32_t asked : {1u, 3u}) {
      std::vector<json> got = choices(stream_of(endpoint, tokens, asked));
      if (endpoint == Endpoint::kChat) {
        EXPECT_TRUE(got.front()["logprobs"].is_null()) << "the role is no token";
        got.erase(got.begin());
      }
      ASSERT_EQ(got.size(), tokens.size() + 1);
      EXPECT_TRUE(got.back()["logprobs"].is_null()) << "neither is the end";
      for (std::size_t n = 0; n < tokens.size(); ++n) {
        EXPECT_EQ(got[n]["token_ids"], json{tokens[n]});
        LogprobsWriter one(endpoint, bytes_of);
        // Characters before each token: the euro sign of tokens 3 and 4 begins at the fourth place.
        const std::uint64_t offset[] = {0, 1, 3, 3, 4, 5};
        one.add(tokens[n], told_of(tokens[n], asked), offset[n]);
        EXPECT_EQ(got[n]["logprobs"], json::parse(one.take())) << n;
      }
    }
  }
}

/// A text that a stop string may hold back counts where it will stand.
TEST(LogprobsStream, OffsetsAreThoseOfTheText) {
  const std::vector<json> got = choices(stream_of(Endpoint::kCompletion, {0, 5, 1, 7, 0}, 1, {"END!"}));
  std::vector<std::uint64_t> offsets;
  for (std::size_t n = 0; n + 1 < got.size(); ++n) offsets.push_back(got[n]["logprobs"]["text_offset"][0]);
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{0, 1, 4, 6, 9}));
}

TEST(LogprobsStream, ReplayFromEveryEventIsByteEqual) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const auto& stop : {std::vector<std::string>{}, std::vector<std::string>{" bEN"}}) {
      const Words tokens{3, 4, 0, 1, 5, 2, 6};
      const std::string whole = stream_of(endpoint, tokens, 4, stop);
      int events = 0;
      for (std::size_t at = 0, end; (end = whole.find("\n\n", at)) != std::string::npos; at = end + 2) {
        const auto point = parse_event_id(whole.substr(at + 4, whole.find('\n', at) - at - 4));
        if (!point) continue;
        ++events;
        EXPECT_EQ(stream_of(endpoint, tokens, 4, stop, point->last), whole.substr(end + 2));
      }
      EXPECT_GE(events, 6);
    }
  }
}

// --- by a gateway, from a journal ---

TEST(LogprobsStage, WholeAndStreamedAndResumedSayTheSame) {
  test::FakeEngine engine({.logprobs = 4});
  engine.all_ready();
  const Words tokens{300, 301, 302, 303, 4095};
  for (const bool chat : {false, true}) {
    const char* path = chat ? "/v1/chat/completions" : "/v1/completions";
    const std::string body =
        chat ? R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":2)"
             : R"({"prompt":[5],"logprobs":2)";
    const auto answer = [&](const std::string& more, bool kill) {
      std::optional<test::Client> c(engine.connect());
      c->post(path, body + more + "}");
      const std::uint64_t request = engine.open_next();
      for (std::size_t n = 0; n < tokens.size(); ++n) {
        engine.commit(request, tokens[n], n + 1 < tokens.size() ? Finish::kNone : Finish::kStop,
                      told_of(tokens[n], 3));
        if (n != 1 || !kill) continue;
        const std::string begun = c->read_until("/2\n").body;
        engine.stop_gateway();
        engine.start_gateway();
        c.emplace(engine.connect());
        c->post(path, body + more + "}", "Last-Event-ID: " + std::to_string(request) + "/1\r\n");
        EXPECT_EQ(engine.take().kind, ring::Kind::kAdopt);
      }
      const test::Response r = c->read();
      EXPECT_EQ(r.status, 200) << r.body;
      EXPECT_EQ(engine.take().kind, ring::Kind::kAcknowledge);
      engine.recycle(request);
      return test::without_comments(r.body);
    };
    const json whole = json::parse(answer("", false))["choices"][0]["logprobs"];
    json joined;
    for (const json& c : choices(answer(R"(,"stream":true)", false))) {
      const json own = c["logprobs"].is_null() ? json::object() : c["logprobs"];
      for (const auto& [key, list] : own.items())
        for (const json& item : list) joined[key].push_back(item);
    }
    if (chat) joined["refusal"] = nullptr;
    EXPECT_EQ(joined, whole);
    EXPECT_EQ((chat ? whole["content"] : whole["tokens"]).size(), tokens.size());
    const std::string resumed = answer(R"(,"stream":true)", true);
    std::vector<json> rest = choices(resumed);
    ASSERT_EQ(rest.size(), tokens.size());  // events 2 to 5, and the end
    for (std::size_t n = 1; n < tokens.size(); ++n) {
      const json& l = rest[n - 1]["logprobs"];
      EXPECT_EQ(chat ? l["content"][0] : l["token_logprobs"][0],
                chat ? whole["content"][n] : whole["token_logprobs"][n]);
    }
  }
}

TEST(LogprobsStage, WithoutRoomARequestIsRefused) {
  test::FakeEngine engine;
  engine.all_ready();
  test::Client c = engine.connect();
  c.post("/v1/completions", R"({"prompt":[5],"logprobs":2})");
  const test::Response r = c.read();
  EXPECT_EQ(r.status, 400);
  EXPECT_NE(r.body.find("--logprobs 2"), std::string::npos) << r.body;
}

}  // namespace
}  // namespace wisp::gateway
