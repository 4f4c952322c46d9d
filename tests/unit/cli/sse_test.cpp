#include "services/cli/sse.hpp"

#include <gtest/gtest.h>

namespace wisp::cli {
namespace {

struct Seen {
  std::vector<std::pair<std::string, std::string>> events;
  std::vector<std::string> comments;
  SseReader::Sink sink() {
    return {[this](const SseEvent& e) { events.emplace_back(e.id, e.data); },
            [this](std::string_view c) { comments.emplace_back(c); }};
  }
};

const std::string kStream =
    ": prompt 3/8\r\n\r\nid: 4294967297/0\ndata: {\"a\":1}\n\n:wisp held\nid: 4294967297/1\ndata: two\ndata: "
    "lines\n\n"
    "data:[DONE]\n\nid: 4294967297/2\ndata: half";

TEST(SseReader, AnyCutGivesTheSameEvents) {
  for (std::size_t cut = 1; cut <= kStream.size(); ++cut) {
    Seen seen;
    SseReader reader;
    for (std::size_t at = 0; at < kStream.size(); at += cut)
      reader.feed(std::string_view(kStream).substr(at, cut), seen.sink());
    ASSERT_EQ(seen.events.size(), 3u) << cut;
    EXPECT_EQ(seen.events[0], (std::pair<std::string, std::string>{"4294967297/0", "{\"a\":1}"}));
    EXPECT_EQ(seen.events[1], (std::pair<std::string, std::string>{"4294967297/1", "two\nlines"}));
    EXPECT_EQ(seen.events[2], (std::pair<std::string, std::string>{"", "[DONE]"}));
    EXPECT_EQ(seen.comments, (std::vector<std::string>{"prompt 3/8", "wisp held"}));
  }
}

TEST(SseReader, ResetDropsHalfAnEvent) {
  Seen seen;
  SseReader reader;
  reader.feed("id: 1/5\ndata: half", seen.sink());
  reader.reset();
  reader.feed("\n\ndata: x\n\n", seen.sink());
  ASSERT_EQ(seen.events.size(), 1u);
  EXPECT_EQ(seen.events[0], (std::pair<std::string, std::string>{"", "x"}));
}

std::string body_of(const std::string& response, std::size_t cut, ResponseReader& reader) {
  std::string body;
  for (std::size_t at = 0; at < response.size(); at += cut)
    EXPECT_TRUE(
        reader.feed(std::string_view(response).substr(at, cut), [&](std::string_view b) { body += b; }).ok());
  return body;
}

TEST(ResponseReader, ChunkedAtAnyCut) {
  const std::string response =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nX-Wisp-Request:  77 "
      "\r\n\r\n5\r\nhello\r\n1a;ext=1\r\n"
      "abcdefghijklmnopqrstuvwxyz\r\n0\r\nTrailer: x\r\n\r\n";
  for (std::size_t cut = 1; cut <= response.size(); ++cut) {
    ResponseReader reader;
    EXPECT_EQ(body_of(response, cut, reader), "helloabcdefghijklmnopqrstuvwxyz");
    EXPECT_TRUE(reader.complete());
    EXPECT_EQ(reader.status(), 200);
    EXPECT_EQ(reader.header("x-wisp-request"), "77");
  }
}

TEST(ResponseReader, LengthAndClose) {
  ResponseReader length;
  EXPECT_EQ(body_of("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", 3, length), "nope");
  EXPECT_TRUE(length.complete());
  EXPECT_EQ(length.status(), 404);
  ResponseReader close;
  EXPECT_EQ(body_of("HTTP/1.0 200 OK\r\n\r\ndata: 1\n\n", 5, close), "data: 1\n\n");
  EXPECT_FALSE(close.complete());
  ResponseReader go_on;
  EXPECT_EQ(body_of("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 7, go_on),
            "x");
}

TEST(ResponseReader, RefusesWhatIsNoHttp) {
  const auto ignore = [](std::string_view) {};
  ResponseReader garbage;
  EXPECT_FALSE(garbage.feed("SSH-2.0-OpenSSH\r\n\r\n", ignore).ok());
  ResponseReader endless;
  EXPECT_FALSE(endless.feed(std::string(70000, 'x'), ignore).ok());
  ResponseReader chunk;
  EXPECT_FALSE(chunk.feed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ignore).ok());
}

}  // namespace
}  // namespace wisp::cli
