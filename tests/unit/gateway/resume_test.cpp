#include <gtest/gtest.h>

#include "tests/unit/gateway/fake_engine.hpp"

/// A new life of the gateway, on the journal of the old one.
namespace wisp::gateway::test {
namespace {

using ring::Kind;
using shm::Finish;

constexpr const char* kBody =
    R"({"prompt":[5],"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true})";

/// Places where a stream may be cut: after each event, with the number that it had.
std::vector<std::pair<std::string, std::size_t>> cuts(const std::string& stream) {
  std::vector<std::pair<std::string, std::size_t>> out{{"-", 0}};
  for (std::size_t at = 0, end; (end = stream.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = stream.substr(at, end - at);
    if (!event.starts_with("id: ")) continue;
    const std::size_t slash = event.find('/');
    out.emplace_back(event.substr(slash + 1, event.find('\n') - slash - 1), end + 2);
  }
  return out;
}

TEST(Resume, EveryCutGivesTheSameBytes) {
  FakeEngine engine;
  engine.all_ready();
  std::string whole;
  std::uint64_t request = 0;
  {
    Client c = engine.connect();
    c.post("/v1/completions", kBody);
    request = engine.open_next();
    for (std::uint32_t id : {300u, 301u, 302u, 303u}) engine.commit(request, id);
    engine.commit(request, 4095, Finish::kStop);
    whole = without_comments(c.read().body);
    EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);  // which the router has not acted on
  }
  engine.stop_gateway();
  engine.start_gateway();
  for (const auto& [n, at] : cuts(whole)) {
    // Each with a gateway of its own: it acknowledges what it has delivered.
    Client c = engine.connect();
    c.post("/v1/completions", kBody, "Last-Event-ID: " + std::to_string(request) + "/" + n + "\r\n");
    const Response r = c.read();
    EXPECT_EQ(r.header("X-Wisp-Request"), std::to_string(request));
    EXPECT_EQ(without_comments(r.body), whole.substr(at)) << "after " << n;
    const auto adopt = engine.take();
    EXPECT_EQ(adopt.kind, Kind::kAdopt);
    EXPECT_EQ(adopt.request, request);
    EXPECT_EQ(adopt.gen, 2u);
    EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
  }
  EXPECT_EQ(engine.desk().get(stats::Counter::kResumes), cuts(whole).size());
}

TEST(Resume, GoesOnInMidStream) {
  FakeEngine engine;
  engine.all_ready();
  Client first = engine.connect();
  first.post("/v1/completions", kBody);
  const std::uint64_t request = engine.open_next();
  engine.commit(request, 300);
  engine.commit(request, 301);
  const std::string begun = first.read_until("/2\n").body;
  engine.stop_gateway();  // a death is no disconnect: nothing is said to the router
  engine.commit(request, 302);
  engine.start_gateway();
  Client second = engine.connect();
  second.post("/v1/completions", kBody, "Last-Event-ID: " + std::to_string(request) + "/1\r\n");
  EXPECT_EQ(engine.take().kind, Kind::kAdopt);
  second.read_until("/3\n");
  engine.commit(request, 4095, Finish::kStop);
  const std::string rest = without_comments(second.read().body);
  EXPECT_TRUE(rest.starts_with("id: " + std::to_string(request) + "/2\n")) << rest;
  EXPECT_NE(rest.find("\"finish_reason\":\"stop\""), std::string::npos);
}

TEST(Resume, SubmissionStillInTheRingIsNotGone) {
  FakeEngine engine;
  engine.all_ready();
  Client first = engine.connect();
  first.post("/v1/completions", kBody);
  const std::uint64_t request = engine.peek_submission();
  engine.stop_gateway();
  engine.start_gateway();
  Client second = engine.connect();
  second.post("/v1/completions", kBody, "Last-Event-ID: " + std::to_string(request) + "/-\r\n");
  EXPECT_EQ(engine.open_next(), request);
  EXPECT_EQ(engine.take().kind, Kind::kAdopt);
  engine.commit(request, 300, Finish::kLength);
  EXPECT_TRUE(second.read().body.ends_with("data: [DONE]\n\n"));
}

TEST(Resume, TakesOverFromADeadConnection) {
  FakeEngine engine;
  engine.all_ready();
  Client first = engine.connect();
  first.post("/v1/completions", kBody);
  const std::uint64_t request = engine.open_next();
  engine.commit(request, 300);
  first.read_until("/1\n");
  Client second = engine.connect();
  second.post("/v1/completions", kBody, "Last-Event-ID: " + std::to_string(request) + "/1\r\n");
  EXPECT_EQ(engine.take().kind, Kind::kAdopt);
  EXPECT_TRUE(first.at_end());  // closed by us, and therefore not cancelled
  engine.commit(request, 301, Finish::kLength);
  EXPECT_TRUE(second.read().body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
}

TEST(Resume, WholeAnswerAndGoneRequests) {
  FakeEngine engine;
  engine.all_ready();
  const char* body = R"({"prompt":[5]})";
  Client first = engine.connect();
  first.post("/v1/completions", body);
  const std::uint64_t request = engine.open_next();
  engine.commit(request, 300, Finish::kLength);
  const Response whole = first.read();
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
  Client second = engine.connect();
  second.post("/v1/completions", body, "Last-Event-ID: " + std::to_string(request) + "/-\r\n");
  EXPECT_EQ(second.read().body, whole.body);
  EXPECT_EQ(engine.take().kind, Kind::kAdopt);
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
  engine.recycle(request);
  second.post("/v1/completions", body, "Last-Event-ID: " + std::to_string(request) + "/-\r\n");
  EXPECT_EQ(second.read().status, 404);
}

TEST(Resume, RecordThatExpiresUnderAStreamIsAnError) {
  FakeEngine engine;
  engine.all_ready();
  Client c = engine.connect();
  c.post("/v1/completions", kBody);
  const std::uint64_t request = engine.open_next();
  engine.commit(request, 300);
  c.read_until("/1\n");
  engine.recycle(request);
  engine.tell(request);
  const Response r = c.read();
  EXPECT_TRUE(r.complete);
  EXPECT_NE(r.body.find("\"code\":\"gone\""), std::string::npos);
}

}  // namespace
}  // namespace wisp::gateway::test
