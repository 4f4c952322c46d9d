#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "services/gateway/text/tokenizer.hpp"
#include "tests/unit/gateway/fake_engine.hpp"

/// Requests from the socket to the rings and back.
namespace wisp::gateway::test {
namespace {

using ring::Kind;
using shm::Finish;

constexpr std::uint32_t kEos = 4095;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t = [] {
    std::ifstream in(WISP_TEST_DATA "/pocket-dictionary/tokenizer.json");
    const std::string json((std::istreambuf_iterator<char>(in)), {});
    return text::Tokenizer::load(json).value();
  }();
  return t;
}

std::vector<std::uint32_t> ids_of(const std::string& text) {
  return tokenizer().encode(text, false).value();
}

std::uint64_t created_of(FakeEngine& engine, std::uint64_t request) {
  return engine.record(request)->params.created_s;
}

std::string hex(std::uint64_t n) {
  char text[32];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(n));
  return text;
}

TEST(Stage, StreamIsExactAndAcknowledged) {
  FakeEngine engine;
  engine.all_ready();
  Client c = engine.connect();
  c.post(
      "/v1/completions",
      R"({"prompt":[5,6],"max_tokens":9,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}})");
  const std::uint64_t request = engine.open_next();
  EXPECT_EQ(request >> 32, 1u);
  const auto ids = ids_of("hello");
  const std::string created = std::to_string(created_of(engine, request));
  for (const std::uint32_t id : ids) engine.commit(request, id);
  engine.commit(request, kEos, Finish::kStop);
  const Response r = c.read();
  ASSERT_TRUE(r.complete);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(r.header("X-Wisp-Request"), std::to_string(request));

  const std::string head = "{\"id\":\"cmpl-" + hex(request) +
                           "\",\"object\":\"text_completion\",\"created\":" + created +
                           ",\"model\":\"pocket\",\"choices\":[";
  std::string want;
  int n = 0;
  auto event = [&](const std::string& data) {
    want += "id: " + std::to_string(request) + "/" + std::to_string(++n) + "\ndata: " + head + data + "\n\n";
  };
  for (const std::uint32_t id : ids)
    event("{\"index\":0,\"text\":\"" + std::string(tokenizer().piece_bytes(id)) + "\",\"token_ids\":[" +
          std::to_string(id) + "],\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}");
  event(R"({"index":0,"text":"","token_ids":[4095],"logprobs":null,"finish_reason":null}],"usage":null})");
  event(R"({"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null})");
  const std::size_t made = ids.size() + 1;
  event("],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":" + std::to_string(made) +
        ",\"total_tokens\":" + std::to_string(2 + made) + ",\"seed\":0}}");
  want += "data: [DONE]\n\n";
  EXPECT_EQ(without_comments(r.body), want);

  const auto done = engine.take();
  EXPECT_EQ(done.kind, Kind::kAcknowledge);
  EXPECT_EQ(done.request, request);
  // The connection lives on.
  c.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(c.read().status, 200);
}

TEST(Stage, TokensArriveOneByOne) {
  FakeEngine engine;
  engine.all_ready();
  Client c = engine.connect();
  c.post("/v1/completions", R"({"prompt":[5],"stream":true})");
  const std::uint64_t request = engine.open_next();
  for (int n = 1; n <= 5; ++n) {
    engine.commit(request, 100);
    c.read_until("id: " + std::to_string(request) + "/" + std::to_string(n) + "\n");
  }
  engine.finish(request, 5, Finish::kLength);
  EXPECT_TRUE(c.read().body.ends_with("data: [DONE]\n\n"));
}

TEST(Stage, StopStringEndsTheRequest) {
  FakeEngine engine;
  engine.all_ready();
  for (const bool stream : {true, false}) {
    Client c = engine.connect();
    c.post("/v1/completions",
           std::string(R"({"prompt":"a","stop":["lo wo"],"stream":)") + (stream ? "true}" : "false}"));
    const std::uint64_t request = engine.open_next();
    std::uint32_t n = 0;
    std::string text;
    while (text.find("lo wo") == std::string::npos) {
      const std::uint32_t id = ids_of("hello world")[n++];
      text += tokenizer().piece_bytes(id);
      engine.commit(request, id);
    }
    engine.commit(request, 77);  // one more was on its way
    const auto stop = engine.take();
    EXPECT_EQ(stop.kind, Kind::kFinishAt);
    EXPECT_EQ(stop.pos, n);
    const Response r = c.read();
    EXPECT_NE(r.body.find(R"("finish_reason":"stop")"), std::string::npos);
    EXPECT_EQ(r.body.find("\"text\":\"l"), std::string::npos) << r.body;
    if (!stream) {
      EXPECT_NE(r.body.find(R"("text":"hel")"), std::string::npos) << r.body;
    }
    engine.finish(request, n, Finish::kStopString);
    EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
    engine.recycle(request);
  }
}

TEST(Stage, DisconnectCancelsWhateverThePhase) {
  FakeEngine engine;
  engine.all_ready();
  for (const bool stream : {true, false}) {
    for (const int tokens : {-1, 0, 2}) {  // -1: the router has not even looked at it
      Client c = engine.connect();
      c.post("/v1/completions", std::string(R"({"prompt":[5],"stream":)") + (stream ? "true}" : "false}"));
      std::uint64_t request = tokens < 0 ? engine.peek_submission() : engine.open_next();
      for (int i = 0; i < tokens; ++i) engine.commit(request, 100);
      if (stream && tokens > 0) c.read_until("/2\n");
      c.close();
      if (tokens < 0) request = engine.open_next();
      const auto cancel = engine.take();
      EXPECT_EQ(cancel.kind, Kind::kCancel);
      EXPECT_EQ(cancel.request, request);
      engine.finish(request, static_cast<std::uint32_t>(std::max(tokens, 0)), Finish::kCancelled);
      const auto done = engine.take();
      EXPECT_EQ(done.kind, Kind::kAcknowledge);
      EXPECT_EQ(done.request, request);
      engine.recycle(request);
    }
  }
}

TEST(Stage, OneClientsDepartureLeavesTheOtherAlone) {
  FakeEngine engine;
  engine.all_ready();
  Client stays = engine.connect();
  stays.post("/v1/completions", R"({"prompt":[5],"stream":true})");
  const std::uint64_t first = engine.open_next();
  Client leaves = engine.connect();
  leaves.post("/v1/completions", R"({"prompt":[6],"stream":true})");
  const std::uint64_t second = engine.open_next();
  leaves.close();
  const auto cancel = engine.take();
  EXPECT_EQ(cancel.request, second);
  engine.commit(first, 100);
  engine.commit(first, kEos, Finish::kStop);
  EXPECT_TRUE(stays.read().body.ends_with("data: [DONE]\n\n"));
}

TEST(Stage, FullQueueIs429) {
  FakeEngine engine({.records = 2});
  engine.all_ready();
  std::vector<Client> clients;
  std::vector<std::uint64_t> requests;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(engine.connect());
    clients.back().post("/v1/completions", R"({"prompt":[5],"stream":true})");
    // The second is only in the ring when the third asks: it counts all the same.
    if (i == 0)
      requests.push_back(engine.open_next());
    else
      (void)engine.peek_submission();
  }
  Client c = engine.connect();
  c.post("/v1/completions", R"({"prompt":[5]})");
  Response r = c.read();
  EXPECT_EQ(r.status, 429);
  EXPECT_EQ(r.header("Retry-After"), "1");
  EXPECT_NE(r.body.find("all 2 places"), std::string::npos) << r.body;
  engine.finish(requests[0], 0, Finish::kLength);
  EXPECT_TRUE(clients[0].read().complete);
  requests.push_back(engine.open_next());
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
  engine.recycle(requests[0]);
  c.post("/v1/completions", R"({"prompt":[5],"max_tokens":1})");
  const std::uint64_t third = engine.open_next();
  engine.commit(third, 100, Finish::kLength);
  EXPECT_EQ(c.read().status, 200);
}

/// Its body is in the gateway's memory, whatever became of its record.
TEST(Stage, AnAnswerThatNobodyReadsKeepsItsPlace) {
  constexpr std::uint32_t kTokens = 120'000;  // more of their ids than a socket holds
  FakeEngine engine({.records = 1, .ctx = 2 * kTokens, .arena_bytes = 64 * 1024});
  engine.all_ready();
  Client slow = engine.connect();
  slow.post("/v1/completions", R"({"prompt":[5],"max_tokens":200000,"return_token_ids":true})");
  const std::uint64_t request = engine.open_next();
  shm::JournalRecord* r = engine.record(request);
  for (std::uint32_t i = 0; i < kTokens; ++i) shm::Journal::ids(r)[1 + i] = 100 + i % 50;
  engine.finish(request, kTokens, Finish::kLength);
  ASSERT_TRUE(slow.begun());
  engine.recycle(request);
  Client next = engine.connect();
  next.post("/v1/completions", R"({"prompt":[5],"max_tokens":1})");
  EXPECT_EQ(next.read().status, 429);
  EXPECT_TRUE(slow.read().complete);
  next.post("/v1/completions", R"({"prompt":[5],"max_tokens":1})");
  engine.commit(engine.open_next(), 100, Finish::kLength);
  EXPECT_EQ(next.read().status, 200);
}

TEST(Stage, ErrorsOfTheEngine) {
  FakeEngine engine;
  engine.all_ready();
  Client s = engine.connect();
  s.post("/v1/completions", R"({"prompt":[5],"stream":true})");
  std::uint64_t request = engine.open_next();
  engine.commit(request, 100);
  engine.finish(request, 1, Finish::kError, "expert 3 of layer 2 cannot be read");
  Response r = s.read();
  EXPECT_TRUE(r.complete);
  EXPECT_NE(r.body.find("data: {\"error\":{\"message\":\"expert 3 of layer 2 cannot be read\""),
            std::string::npos)
      << r.body;
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
  engine.recycle(request);

  Client n = engine.connect();
  n.post("/v1/completions", R"({"prompt":[5]})");
  request = engine.open_next();
  engine.finish(request, 0, Finish::kError, "expert 3 of layer 2 cannot be read");
  r = n.read();
  EXPECT_EQ(r.status, 500);
  EXPECT_NE(r.body.find("expert 3 of layer 2"), std::string::npos);
}

TEST(Stage, RefusalByTheRouterIsNoSilence) {
  FakeEngine engine;
  engine.all_ready();
  Client c = engine.connect();
  c.post("/v1/completions", R"({"prompt":[5]})");
  EXPECT_EQ(engine.take().kind, Kind::kSubmit);  // and opens no record
  engine.tell(1);
  EXPECT_EQ(c.read().status, 500);
}

TEST(Stage, GivingUpEndsOpenStreams) {
  FakeEngine engine;
  engine.all_ready();
  Client s = engine.connect();
  s.post("/v1/completions", R"({"prompt":[5],"stream":true})");
  const std::uint64_t request = engine.open_next();
  engine.commit(request, 100);
  s.read_until("/1\n");
  std::strcpy(engine.life().give_up_reason, "loader: no such drive");
  engine.life().stage[2].state = static_cast<std::uint32_t>(shm::StageState::kGivenUp);
  engine.ring_gateway();
  EXPECT_NE(s.read().body.find("loader: no such drive"), std::string::npos);
}

TEST(Stage, CommentsTellOfPromptAndDeaths) {
  FakeEngine engine;
  engine.all_ready();
  Client c = engine.connect();
  c.post("/v1/completions", R"({"prompt":[5,6,7,8],"stream":true})");
  const std::uint64_t request = engine.open_next();
  engine.set_kv_len(request, 3);
  c.read_until(": prompt 3/4\n\n");
  shm::StageLife& compute = engine.life().stage[3];
  compute.last_status = 9;
  compute.dead_through = 1;
  compute.state = static_cast<std::uint32_t>(shm::StageState::kBackingOff);
  engine.ring_gateway();
  c.read_until(": wisp compute stopped (signal 9), restarting\n\n");
  compute.epoch = 2;
  compute.state = static_cast<std::uint32_t>(shm::StageState::kReady);
  engine.ring_gateway();
  c.read_until(": wisp compute is back\n\n");
  engine.commit(request, 100, Finish::kLength);
  const Response r = c.read();
  EXPECT_TRUE(without_comments(r.body).starts_with("id: " + std::to_string(request) + "/1\n"));
}

TEST(Stage, HalfEventsAddUp) {
  FakeEngine engine;
  engine.all_ready();
  std::string bodies[2];
  for (const bool armed : {false, true}) {
    // Signal 0 kills nobody: the stream goes on after each half event.
    if (armed) engine.arm(service::CrashPoint::kSseHalf, 1000, 0);
    Client c = engine.connect();
    c.post("/v1/completions", R"({"prompt":[5],"stream":true,"max_tokens":3})");
    const std::uint64_t request = engine.open_next();
    const std::string created = std::to_string(created_of(engine, request));
    for (int i = 0; i < 3; ++i) engine.commit(request, 100, i == 2 ? Finish::kLength : Finish::kNone);
    bodies[armed] = without_comments(c.read().body);
    EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
    engine.recycle(request);
    for (const std::string& id : {std::to_string(request), hex(request), created})
      for (std::size_t at; (at = bodies[armed].find(id)) != std::string::npos;)
        bodies[armed].replace(at, id.size(), "R");
  }
  EXPECT_EQ(bodies[0], bodies[1]);
  EXPECT_LT(engine.countdown(), 1000u);
}

TEST(Stage, FullEdgeDelaysButHttpLives) {
  // The smallest arena, a page, holds one such prompt: the others wait until the router has read it.
  FakeEngine engine({.ctx = 1024, .arena_bytes = 4096});
  engine.all_ready();
  std::string ids = "1";
  for (int i = 1; i < 900; ++i) ids += ",1";
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(engine.connect());
    clients.back().post("/v1/completions", "{\"prompt\":[" + ids + "],\"max_tokens\":1,\"stream\":true}");
  }
  while (engine.desk().get(stats::Counter::kRequests) < 3) ::poll(nullptr, 0, 1);
  Client h = engine.connect();
  h.send("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(h.read().status, 200);
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t request = engine.open_next();
    engine.commit(request, 100, Finish::kLength);
  }
  for (Client& c : clients) EXPECT_TRUE(c.read().complete);
}

TEST(Stage, SlowClientGetsEverythingFromTheJournal) {
  constexpr std::uint32_t kTokens = 6000;
  FakeEngine engine({.records = 2, .ctx = 8192, .arena_bytes = 64 * 1024});
  engine.all_ready();
  Client c = engine.connect();
  c.post("/v1/completions", R"({"prompt":[5],"max_tokens":8000,"stream":true})");
  const std::uint64_t request = engine.open_next();
  shm::JournalRecord* r = engine.record(request);
  for (std::uint32_t i = 0; i < kTokens; ++i) shm::Journal::ids(r)[1 + i] = 100 + i % 50;
  engine.finish(request, kTokens / 2, Finish::kNone);
  c.read_until("id: " + std::to_string(request) + "/1\n");
  engine.finish(request, kTokens, Finish::kLength);
  const Response whole = c.read();
  ASSERT_TRUE(whole.complete);
  std::size_t events = 0;
  for (std::size_t at = whole.body.find("id: "); at != std::string::npos;
       at = whole.body.find("\nid: ", at + 1))
    ++events;
  EXPECT_EQ(events, kTokens + 1);
}

}  // namespace
}  // namespace wisp::gateway::test
