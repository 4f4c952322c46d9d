#include "services/cli/http_client.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/unit/cli/scripted_server.hpp"

namespace wisp::cli {
namespace {

const std::string kHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Wisp-Request: 99\r\nConnection: close\r\n\r\n";

std::string event(int n, const std::string& data) {
  return "id: 99/" + std::to_string(n) + "\ndata: " + data + "\n\n";
}

struct Outcome {
  std::vector<std::string> events;
  std::vector<std::string> comments;
  Result<StreamEnd> end = StreamEnd{};
};

void fetch_to(Outcome& o, const ScriptedServer& server, const StreamWorld& world) {
  StreamRequest request{server.path(), "/v1/chat/completions", R"({"q":1})", {{"X-Wisp-Default-Max", "all"}}};
  o.end = stream(request,
                 {[&](const std::string& data) { o.events.push_back(data); },
                  [&](std::string_view text) { o.comments.emplace_back(text); }},
                 world);
}

Outcome fetch(const ScriptedServer& server, const StreamWorld& world = {}) {
  Outcome o;
  fetch_to(o, server, world);
  return o;
}

using Strings = std::vector<std::string>;

TEST(HttpClient, PlainStream) {
  ScriptedServer server({kHead + ": prompt 1/1\n\n" + event(0, "a") + event(1, "b") + "data: [DONE]\n\n"});
  const Outcome o = fetch(server);
  ASSERT_TRUE(o.end.ok()) << o.end.error().text;
  EXPECT_EQ(o.events, (Strings{"a", "b"}));
  EXPECT_EQ(o.comments, (Strings{"prompt 1/1"}));
  EXPECT_EQ(o.end->request, "99");
  EXPECT_EQ(o.end->resumes, 0u);
  EXPECT_FALSE(o.end->interrupted);
  const std::string& sent = server.requests().at(0);
  EXPECT_TRUE(sent.starts_with("POST /v1/chat/completions HTTP/1.1\r\n")) << sent;
  EXPECT_NE(sent.find("X-Wisp-Default-Max: all\r\n"), std::string::npos);
  EXPECT_EQ(sent.find("Last-Event-ID"), std::string::npos);
  EXPECT_TRUE(sent.ends_with("\r\n\r\n{\"q\":1}"));
}

TEST(HttpClient, ResumesAfterHalfAnEvent) {
  // The gateway dies in the middle of event 2; its successor replays from there, one event too early for good
  // measure.
  ScriptedServer server({kHead + event(0, "a") + event(1, "b") + "id: 99/2\ndata: c",
                         kHead + event(1, "b") + event(2, "c"), "",
                         kHead + event(3, "d") + "data: [DONE]\n\n"});
  const Outcome o = fetch(server);
  ASSERT_TRUE(o.end.ok()) << o.end.error().text;
  EXPECT_EQ(o.events, (Strings{"a", "b", "c", "d"}));
  EXPECT_EQ(o.end->resumes, 3u);
  ASSERT_EQ(server.requests().size(), 4u);
  EXPECT_NE(server.requests()[1].find("Last-Event-ID: 99/1\r\n"), std::string::npos);
  EXPECT_NE(server.requests()[2].find("Last-Event-ID: 99/2\r\n"), std::string::npos);
  EXPECT_NE(server.requests()[3].find("Last-Event-ID: 99/2\r\n"), std::string::npos);
  for (const std::string& r : server.requests()) EXPECT_TRUE(r.ends_with("{\"q\":1}")) << "the same body";
}

TEST(HttpClient, ResumesWithoutAnyEvent) {
  ScriptedServer server({kHead, kHead + event(0, "a") + "data: [DONE]\n\n"});
  const Outcome o = fetch(server);
  ASSERT_TRUE(o.end.ok());
  EXPECT_EQ(o.events, Strings{"a"});
  EXPECT_NE(server.requests().at(1).find("Last-Event-ID: 99/-\r\n"), std::string::npos);
}

TEST(HttpClient, RepeatsThePostUnderOneKey) {
  ScriptedServer server({"", kHead + "data: [DONE]\n\n"});
  ASSERT_TRUE(fetch(server).end.ok());
  const auto key = [&](std::size_t i) {
    const std::string& r = server.requests().at(i);
    const auto at = r.find("Idempotency-Key: ");
    return at == std::string::npos ? std::string{} : r.substr(at, r.find("\r\n", at) - at);
  };
  EXPECT_FALSE(key(0).empty());
  EXPECT_EQ(key(0), key(1));
  EXPECT_EQ(server.requests()[1].find("Last-Event-ID"), std::string::npos);
}

TEST(HttpClient, ComesBackWhenToldTo) {
  ScriptedServer server({"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}",
                         kHead + event(0, "a") + "data: [DONE]\n\n"});
  const Outcome o = fetch(server);
  ASSERT_TRUE(o.end.ok());
  EXPECT_EQ(o.events, Strings{"a"});
}

TEST(HttpClient, PassesRefusalsOn) {
  const std::string body = R"({"error":{"message":"the prompt is empty","type":"invalid_request_error"}})";
  ScriptedServer server(
      {"HTTP/1.1 400 Bad Request\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body});
  const Outcome o = fetch(server);
  ASSERT_FALSE(o.end.ok());
  EXPECT_EQ(o.end.error().code, ErrorCode::kInvalid);
  EXPECT_EQ(o.end.error().text, "the prompt is empty");
}

TEST(HttpClient, ARemovedSocketIsNoDeath) {
  StreamRequest request{"/nonexistent/http.sock", "/v1/chat/completions", "{}", {}};
  const auto end = stream(request, {}, {});
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(end.error().text.find("/nonexistent/http.sock was removed"), std::string::npos)
      << end.error().text;
}

TEST(HttpClient, EndsWhenTheLauncherIsGone) {
  ScriptedServer server({kHead + event(0, "a")});
  StreamWorld world;
  Outcome o;
  world.check = [&] { return o.events.empty() ? Status{} : Status(unavailable("the pipeline is gone")); };
  fetch_to(o, server, world);
  ASSERT_FALSE(o.end.ok());
  EXPECT_EQ(o.end.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(o.events, Strings{"a"});
}

TEST(HttpClient, LooksAroundWhileNothingComes) {
  ScriptedServer server({kHead + event(0, "a")}, true);
  int looks = 0;
  StreamWorld world;
  world.check = [&] { return ++looks < 2 ? Status{} : Status(unavailable("compute has been given up")); };
  const Outcome o = fetch(server, world);
  ASSERT_FALSE(o.end.ok());
  EXPECT_EQ(o.end.error().text, "compute has been given up");
}

TEST(HttpClient, AWatchGivesUp) {
  ScriptedServer server({kHead + event(0, "a")}, true);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd read(ends[0]);
  const Fd write(ends[1]);
  StreamWorld world;
  world.watches = {{[&] { return read.get(); }, [] { return false; }}};
  Outcome o;
  StreamRequest request{server.path(), "/", "{}", {}};
  o.end = stream(request,
                 {[&](const std::string& data) {
                    o.events.push_back(data);
                    EXPECT_EQ(::write(write.get(), "x", 1), 1);
                  },
                  nullptr},
                 world);
  ASSERT_TRUE(o.end.ok());
  EXPECT_TRUE(o.end->interrupted);
  EXPECT_EQ(o.events, Strings{"a"});
}

}  // namespace
}  // namespace wisp::cli
