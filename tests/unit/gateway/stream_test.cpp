#include "services/gateway/stream.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace wisp::gateway {
namespace {

using shm::Finish;

/// A vocabulary of our own: id -> bytes.
const std::vector<std::string> kWords{"Hel", "lo", " wor", "ld", "\xE2\x82", "\xAC", "EN", "D!", "<eos>"};
std::string_view bytes_of(std::uint32_t id) {
  return id < kWords.size() ? std::string_view(kWords[id]) : std::string_view();
}

struct Case {
  Endpoint endpoint = Endpoint::kChat;
  std::vector<std::uint32_t> tokens;
  Finish finish = Finish::kStop;
  std::vector<std::string> stop = {};
  bool usage = false;
  bool ids = false;
  std::uint32_t flags = 0;
  std::string error = {};
};

shm::RequestParams params_of(const Case& c) {
  shm::RequestParams p;
  p.prompt_tokens = 4;
  p.seed = 99;
  p.created_s = 1700000000;
  p.eos_count = 1;
  p.eos[0] = 8;
  p.flags = c.flags;
  return p;
}

std::string stream_of(const Case& c, std::optional<std::uint64_t> received = std::nullopt) {
  const AnswerShape shape{"m", c.endpoint, c.stop, c.usage, c.ids};
  EventStream events(shape, (std::uint64_t{2} << 32) | 10, params_of(c), bytes_of, received);
  std::string out;
  events.begin(out);
  for (const std::uint32_t t : c.tokens) {
    events.token(t, {}, out);
    if (events.stopped()) break;
  }
  events.end(c.finish, c.error, out);
  return out;
}

constexpr const char* kHead =
    R"({"id":"chatcmpl-20000000a","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[)";
constexpr const char* kTextHead =
    R"({"id":"cmpl-20000000a","object":"text_completion","created":1700000000,"model":"m","choices":[)";

std::string event(int n, const std::string& data) {
  return "id: 8589934602/" + std::to_string(n) + "\ndata: " + data + "\n\n";
}
std::string chat(int n, const std::string& delta, const std::string& reason, const std::string& tail = "]}") {
  return event(n, kHead + (R"({"index":0,"delta":)" + delta) + R"(,"logprobs":null,"finish_reason":)" +
                      reason + "}" + tail);
}
std::string text(int n, const std::string& piece, const std::string& reason, const std::string& ids = "") {
  return event(n, kTextHead + (R"({"index":0,"text":)" + piece) + ids +
                      R"(,"logprobs":null,"finish_reason":)" + reason + "}]}");
}
const std::string kDone = "data: [DONE]\n\n";

TEST(Stream, ChatIsExact) {
  const std::string want = chat(0, R"({"role":"assistant","content":""})", "null") +
                           chat(1, R"({"content":"Hel"})", "null") + chat(2, R"({"content":"lo"})", "null") +
                           chat(3, R"({"content":""})", "null") + chat(4, "{}", "\"stop\"") + kDone;
  EXPECT_EQ(stream_of({.tokens = {0, 1, 8}}), want);
}

TEST(Stream, CompletionWithIdsIsExact) {
  const std::string want = text(1, "\"Hel\"", "null", ",\"token_ids\":[0]") +
                           text(2, "\"lo\"", "null", ",\"token_ids\":[1]") + text(3, "\"\"", "\"length\"") +
                           kDone;
  EXPECT_EQ(
      stream_of(
          {.endpoint = Endpoint::kCompletion, .tokens = {0, 1}, .finish = Finish::kLength, .ids = true}),
      want);
}

TEST(Stream, UsageOnlyWhereAskedFor) {
  const std::string tail = "],\"usage\":null}";
  const std::string want =
      chat(0, R"({"role":"assistant","content":""})", "null", tail) +
      chat(1, R"({"content":"Hel"})", "null", tail) + chat(2, "{}", "\"length\"", tail) +
      event(3, std::string(kHead) +
                   R"(],"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5,"seed":99}})") +
      kDone;
  EXPECT_EQ(stream_of({.tokens = {0}, .finish = Finish::kLength, .usage = true}), want);
  EXPECT_EQ(stream_of({.tokens = {0}, .finish = Finish::kLength}).find("usage"), std::string::npos);
}

TEST(Stream, CharacterAcrossTokens) {
  const std::string whole = stream_of({.tokens = {4, 5}, .finish = Finish::kLength});
  EXPECT_NE(
      whole.find(chat(1, R"({"content":""})", "null") + chat(2, "{\"content\":\"\xE2\x82\xAC\"}", "null")),
      std::string::npos)
      << whole;
  // Cut off at the end: one replacement character, with the finish.
  const std::string cut = stream_of({.tokens = {0, 4}, .finish = Finish::kLength});
  EXPECT_NE(cut.find(chat(3, "{\"content\":\"\xEF\xBF\xBD\"}", "\"length\"")), std::string::npos) << cut;
}

TEST(Stream, StopStringAcrossTokens) {
  const Case c{.tokens = {0, 6, 7, 1}, .finish = Finish::kNone, .stop = {"lEND"}};
  const std::string want = chat(0, R"({"role":"assistant","content":""})", "null") +
                           chat(1, R"({"content":"He"})", "null") + chat(2, R"({"content":""})", "null") +
                           chat(3, R"({"content":""})", "null") + chat(4, "{}", "\"stop\"") + kDone;
  EXPECT_EQ(stream_of(c), want);
  // The record truncated by the router gives the same bytes, whatever finish it carries.
  EXPECT_EQ(stream_of({.tokens = {0, 6, 7}, .finish = Finish::kLength, .stop = {"lEND"}}), want);
}

TEST(Stream, StopStringThatNeverCompletesIsReleased) {
  const std::string out = stream_of({.tokens = {6}, .finish = Finish::kLength, .stop = {"END!"}});
  EXPECT_NE(out.find(chat(1, R"({"content":""})", "null") + chat(2, R"({"content":"EN"})", "\"length\"")),
            std::string::npos)
      << out;
}

TEST(Stream, EndTokenIsNotPrintedUnlessIgnored) {
  EXPECT_EQ(stream_of({.tokens = {0, 8}}).find("<eos>"), std::string::npos);
  EXPECT_NE(stream_of({.tokens = {0, 8}, .finish = Finish::kLength, .flags = shm::kIgnoreEos}).find("<eos>"),
            std::string::npos);
}

/// The text of all events of a stream, and the last finish_reason.
std::pair<std::string, std::string> text_of(const std::string& stream) {
  std::string text, reason;
  std::istringstream lines(stream);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const auto event = nlohmann::json::parse(line.substr(6));
    for (const auto& choice : event["choices"]) {
      text +=
          choice.contains("text") ? choice["text"].get<std::string>() : choice["delta"].value("content", "");
      if (choice["finish_reason"].is_string()) reason = choice["finish_reason"];
    }
  }
  return {text, reason};
}

/// Models have several ids that end an answer: each of them ends it, and none is printed.
TEST(Stream, EachEndTokenEndsAndNoneIsPrinted) {
  shm::RequestParams params = params_of({});
  params.eos_count = 3;
  params.eos[1] = 6;
  params.eos[2] = 3;
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const std::uint32_t end : {8u, 6u, 3u}) {
      const AnswerShape shape{"m", endpoint, {}, true, false};
      EventStream events(shape, 1, params, bytes_of, std::nullopt);
      std::string out;
      events.begin(out);
      for (const std::uint32_t t : {0u, 1u, end}) events.token(t, {}, out);
      events.end(Finish::kStop, {}, out);
      EXPECT_EQ(text_of(out), std::pair(std::string("Hello"), std::string("stop"))) << end;
      AnswerText whole({}, params, Endpoint::kChat, bytes_of);
      std::string text;
      for (const std::uint32_t t : {0u, 1u, end}) text += whole.push(t, {});
      EXPECT_EQ(text + whole.flush(), "Hello") << end;
    }
  }
}

/// A stop string wherever it lies among the tokens, on both endpoints, streamed and whole: nothing of it is
/// sent.
TEST(Stream, StopMatrix) {
  struct Stop {
    std::vector<std::uint32_t> tokens;
    std::string stop, text;
  };
  const std::vector<Stop> stops{
      {{0, 1, 2, 3}, "Hel", ""},              // the first token itself
      {{0, 1, 2, 3}, "Hello", ""},            // two tokens
      {{0, 1, 2, 3}, "lo w", "Hel"},          // begins in the middle of a token
      {{0, 1, 6, 7, 2}, "loEND!", "Hel"},     // three tokens
      {{0, 1, 2, 3, 6}, "lo worldE", "Hel"},  // four
      {{0, 6, 6, 7, 1}, "END!", "HelEN"},     // begins again after a false start
      {{4, 5, 0, 1}, "\xE2\x82\xACH", ""},    // a character that two tokens share
      {{0, 1, 6}, "END!", "HelloEN"},         // never completed: released at the end
  };
  for (const Stop& s : stops) {
    SCOPED_TRACE(s.stop);
    for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
      for (const bool usage : {false, true}) {
        const std::string out =
            stream_of({.endpoint = endpoint, .tokens = s.tokens, .stop = {s.stop, "zzz"}, .usage = usage});
        EXPECT_EQ(text_of(out), std::pair(s.text, std::string("stop")));
      }
    }
    AnswerText whole({s.stop}, params_of({}), Endpoint::kChat, bytes_of);
    std::string text;
    for (const std::uint32_t t : s.tokens) text += whole.push(t, {});
    EXPECT_EQ(text + whole.flush(), s.text);
  }
}

TEST(Stream, ErrorIsAnEventWithoutDone) {
  const std::string out =
      stream_of({.tokens = {0}, .finish = Finish::kError, .error = "expert 3 of layer 2 cannot be read"});
  EXPECT_TRUE(out.ends_with(event(
      2,
      R"({"error":{"message":"expert 3 of layer 2 cannot be read","type":"server_error","param":null,"code":"failed"}})")))
      << out;
  EXPECT_EQ(out.find("[DONE]"), std::string::npos);
}

TEST(Stream, ReplayFromEveryEventIsByteEqual) {
  const std::vector<Case> cases{
      {.tokens = {0, 1, 2, 3, 8}, .usage = true, .ids = true},
      {.endpoint = Endpoint::kCompletion,
       .tokens = {4, 5, 0, 6, 7, 1},
       .finish = Finish::kLength,
       .stop = {"D!l"}},
      {.tokens = {4, 6, 7, 2}, .finish = Finish::kLength, .stop = {"ND"}},
      {.tokens = {0, 1}, .finish = Finish::kError, .error = "x"},
  };
  for (const Case& c : cases) {
    const std::string whole = stream_of(c);
    EXPECT_EQ(stream_of(c, std::nullopt), whole);
    std::size_t at = 0;
    for (std::size_t next = whole.find("\n\n"); next != std::string::npos; next = whole.find("\n\n", at)) {
      const std::string one = whole.substr(at, next + 2 - at);
      at = next + 2;
      if (!one.starts_with("id: ")) continue;
      const auto point = parse_event_id(one.substr(4, one.find('\n') - 4));
      ASSERT_TRUE(point && point->last);
      EXPECT_EQ(stream_of(c, point->last), whole.substr(at)) << "after " << *point->last;
    }
  }
}

TEST(Stream, EventIds) {
  EXPECT_EQ(parse_event_id("12/3")->request, 12u);
  EXPECT_EQ(parse_event_id("12/3")->last, 3u);
  EXPECT_FALSE(parse_event_id("12/-")->last);
  for (const char* bad :
       {"", "12", "/3", "12/", "a/3", "12/x", "12/3x", "-1/3", "12/ 3", "99999999999999999999999/1"})
    EXPECT_FALSE(parse_event_id(bad)) << bad;
}

TEST(Stream, WholeAnswer) {
  const std::vector<std::uint32_t> ids{0, 1};
  EXPECT_EQ(
      answer_body({Endpoint::kChat, 10, 5, "m"}, "Hello", "stop", {4, 2, 9}, &ids),
      R"({"id":"chatcmpl-a","object":"chat.completion","created":5,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},"token_ids":[0,1],"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6,"seed":9}})");
  EXPECT_EQ(
      answer_body({Endpoint::kCompletion, 10, 5, "m"}, "a\"b", "length", {4, 2, 9}, nullptr),
      R"({"id":"cmpl-a","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":"a\"b","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6,"seed":9}})");
}

}  // namespace
}  // namespace wisp::gateway
