#include <gtest/gtest.h>

#include "tests/unit/gateway/fake_engine.hpp"

/// Routes, refusals and connections, over a real socket.
namespace wisp::gateway::test {
namespace {

Response get(FakeEngine& engine, const std::string& path, const std::string& method = "GET") {
  Client c = engine.connect();
  c.send(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  return c.read();
}

Response post(FakeEngine& engine, const std::string& body, const std::string& headers = "") {
  Client c = engine.connect();
  c.post("/v1/completions", body, headers);
  return c.read();
}

TEST(Http, Models) {
  FakeEngine engine;
  Response r = get(engine, "/v1/models?x=1");
  EXPECT_EQ(r.status, 200);
  EXPECT_TRUE(r.body.starts_with(R"({"object":"list","data":[{"id":"pocket","object":"model","created":)"))
      << r.body;
  EXPECT_EQ(get(engine, "/v1/models/pocket").status, 200);
  EXPECT_EQ(get(engine, "/v1/models/p%6Fcket").status, 200);
  r = get(engine, "/v1/models/other");
  EXPECT_EQ(r.status, 404);
  EXPECT_NE(r.body.find("model_not_found"), std::string::npos);
}

TEST(Http, UnknownPathsAndMethods) {
  FakeEngine engine;
  EXPECT_EQ(get(engine, "/").status, 404);
  EXPECT_EQ(get(engine, "/v1/models/").status, 404);
  EXPECT_EQ(get(engine, "/v1/embeddings", "POST").status, 404);
  const Response r = get(engine, "/v1/chat/completions");
  EXPECT_EQ(r.status, 405);
  EXPECT_EQ(r.header("Allow"), "POST");
  EXPECT_EQ(get(engine, "/health", "DELETE").status, 405);
  EXPECT_EQ(engine.desk().get(stats::Counter::kHttpErrors), 5u);
}

TEST(Http, HealthFollowsLife) {
  FakeEngine engine;
  Response r = get(engine, "/health");
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.body, R"({"status":"unavailable","reason":"router is starting"})");
  engine.all_ready();
  EXPECT_EQ(get(engine, "/health").status, 200);
  std::strcpy(engine.life().give_up_reason, "compute died five times");
  engine.life().stage[3].state = static_cast<std::uint32_t>(shm::StageState::kGivenUp);
  r = get(engine, "/health");
  EXPECT_EQ(r.status, 503);
  EXPECT_NE(r.body.find("compute died five times"), std::string::npos);
  r = post(engine, R"({"prompt":[1]})");
  EXPECT_EQ(r.status, 503);
  EXPECT_NE(r.body.find("compute died five times"), std::string::npos);
  EXPECT_FALSE(r.header("Retry-After").empty());
}

TEST(Http, RefusalsNameTheField) {
  FakeEngine engine;
  engine.all_ready();
  Response r = post(engine, R"({"prompt":[1],"temperature":3})");
  EXPECT_EQ(r.status, 400);
  EXPECT_NE(r.body.find(R"("param":"temperature")"), std::string::npos) << r.body;
  EXPECT_EQ(post(engine, "{").status, 400);
  EXPECT_EQ(post(engine, "{\"prompt\":\"\xc3\x28\"}").status, 400);
  EXPECT_EQ(post(engine, R"({"prompt":[4096]})").status, 400);
  EXPECT_EQ(post(engine, R"({"prompt":[1],"write_logits":true})").status, 400);
  EXPECT_EQ(post(engine, R"({"prompt":[1]})", "Last-Event-ID: nonsense\r\n").status, 400);
  r = post(engine, R"({"prompt":[1]})", "Last-Event-ID: 77/3\r\n");
  EXPECT_EQ(r.status, 404);
  EXPECT_NE(r.body.find(R"("code":"gone")"), std::string::npos);
  std::string ids = "1";
  for (int i = 1; i < 64; ++i) ids += ",1";
  r = post(engine, "{\"prompt\":[" + ids + "]}");
  EXPECT_EQ(r.status, 400);
  EXPECT_NE(r.body.find("has 64 tokens, but the context holds 64"), std::string::npos) << r.body;
}

TEST(Http, MalformedRequests) {
  FakeEngine engine;
  for (const std::string bad :
       {"NONSENSE\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\x01 HTTP/1.1\r\n\r\n", "\r\r\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    Client c = engine.connect();
    c.send(bad);
    const Response r = c.read();
    EXPECT_EQ(r.status, 400) << bad;
    EXPECT_NE(r.body.find("malformed HTTP"), std::string::npos) << bad << r.body;
    EXPECT_TRUE(c.at_end());
  }
  EXPECT_EQ(get(engine, "/v1/models").status, 200);
}

TEST(Http, PagesOfOtherSitesAreRefused) {
  FakeEngine engine;
  const auto status = [&](const std::string& headers, const std::string& host = "localhost:8080") {
    Client c = engine.connect();
    c.send("POST /v1/completions HTTP/1.1\r\nHost: " + host + "\r\n" + headers +
           "Content-Length: 2\r\n\r\n{}");
    return c.read().status;
  };
  EXPECT_EQ(status("Origin: http://evil.example\r\n"), 403);
  EXPECT_EQ(status("Origin: null\r\n"), 403);
  EXPECT_EQ(status("Origin: http://localhost:8080\r\n"), 400);
  EXPECT_EQ(status("Origin: http://127.0.0.1:8080\r\n", "127.0.0.1:8080"), 400);
  EXPECT_EQ(status("Origin: http://[::1]:8080\r\n", "[::1]:8080"), 400);
  // A name that its owner points to this machine.
  EXPECT_EQ(status("Origin: http://evil.example:8080\r\n", "evil.example:8080"), 403);
  EXPECT_EQ(status("", "some.name:8080"), 400);
  EXPECT_EQ(status(""), 400);
}

TEST(Http, SizesAreLimited) {
  FakeEngine engine;
  Client c = engine.connect();
  c.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 67585\r\n\r\n");
  EXPECT_EQ(c.read().status, 413);
  Client h = engine.connect();
  h.send("GET /health HTTP/1.1\r\nX: " + std::string(40000, 'x') + "\r\n\r\n");
  EXPECT_EQ(h.read().status, 431);
  // Just below the limit, and refused for what it says.
  const Response r = post(engine, "{\"prompt\":5,\"x\":\"" + std::string(60000, 'y') + "\"}");
  EXPECT_EQ(r.status, 400);
  EXPECT_NE(r.body.find(R"("param":"prompt")"), std::string::npos);
}

TEST(Http, KeepAliveExpectAndChunkedBodies) {
  FakeEngine engine;
  Client c = engine.connect();
  for (int i = 0; i < 3; ++i) {
    c.send("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    const Response r = c.read();
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.header("Connection"), "keep-alive");
  }
  c.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n5\r\n{\"pro\r\n8\r\nmpt\":5}\n\r\n0\r\n\r\n");
  EXPECT_NE(c.read().body.find(R"("param":"prompt")"), std::string::npos);
  c.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: "
      "close\r\n\r\n");
  EXPECT_EQ(c.read_interim(), 100);
  c.send("{}");
  EXPECT_TRUE(c.at_end());
  EXPECT_EQ(engine.desk().get(stats::Counter::kHttpRequests), 5u);
}

TEST(Http, WhoOnlyConnectsGivesWay) {
  FakeEngine engine;
  const std::string get = "GET /v1/models HTTP/1.1\r\nHost: x\r\n";
  std::vector<Client> idle;
  for (int i = 0; i < 256; ++i) {
    idle.push_back(engine.connect());
    // Half a request: it stays, and the next one gives way.
    if (i != 0) continue;
    idle[0].send(get + "\r\n" + get);
    EXPECT_EQ(idle[0].read().status, 200);
  }
  Client one_more = engine.connect();
  one_more.send(get + "\r\n");
  EXPECT_EQ(one_more.read().status, 200);
  EXPECT_TRUE(idle[1].at_end());
  idle[0].send("\r\n");
  EXPECT_EQ(idle[0].read().status, 200);
  idle.back().send(get + "Connection: close\r\n\r\n");
  EXPECT_EQ(idle.back().read().status, 200);
  EXPECT_TRUE(idle.back().at_end());
}

TEST(Http, TooManyBusyConnectionsAreTurnedAway) {
  FakeEngine engine({.records = 256});
  engine.all_ready();
  std::vector<Client> busy;
  for (int i = 0; i < 256; ++i) {
    busy.push_back(engine.connect());
    busy.back().post("/v1/completions", R"({"prompt":[5],"max_tokens":1,"stream":true})");
    (void)engine.open_next();
  }
  Client one_more = engine.connect();
  const Response r = one_more.read();
  EXPECT_EQ(r.status, 503);
  EXPECT_TRUE(r.complete);
}

}  // namespace
}  // namespace wisp::gateway::test
