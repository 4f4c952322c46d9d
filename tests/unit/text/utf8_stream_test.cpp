#include "services/gateway/text/utf8_stream.hpp"

#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {
namespace {

TEST(Utf8Stream, GivesWhatPythonsIncrementalDecoderGives) {
  ASSERT_GT(vectors()["utf8"].size(), 100U);
  std::size_t compared = 0;
  for (const OrderedJson& row : vectors()["utf8"]) {
    Utf8Stream stream;
    std::string all;
    std::string ours;
    std::string theirs;
    bool same_cuts = true;
    for (const OrderedJson& piece : row["pieces"]) {
      std::string bytes;
      for (const OrderedJson& byte : piece[0]) bytes.push_back(static_cast<char>(byte.get<std::uint8_t>()));
      const std::string text = stream.push(bytes);
      same_cuts = same_cuts && text == piece[1].get<std::string>();
      all += bytes;
      ours += text;
      theirs += piece[1].get<std::string>();
    }
    EXPECT_EQ(ours + stream.flush(), theirs + row["flush"].get<std::string>()) << row;
    EXPECT_EQ(stream.flush(), "");
    // Python waits for the third byte of an encoded surrogate before it replaces the first two; nothing else
    // waits.
    if (all.find("\xED\xA0") != std::string::npos) continue;
    EXPECT_TRUE(same_cuts) << row;
    ++compared;
  }
  EXPECT_GT(compared, 40U);
}

TEST(Utf8Stream, HoldsACharacterUntilItsLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0"), "a");
  EXPECT_EQ(stream.push("\x9F"), "");
  EXPECT_EQ(stream.push(""), "");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "\xF0\x9F\x98\x80z");
}

}  // namespace
}  // namespace wisp::text
