#include "services/gateway/text/space_marks.hpp"

#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {
namespace {

using Ids = std::vector<std::uint32_t>;

/// What tests/oracle/marked_tokenizer.py wrote.
const nlohmann::json& marked() {
  static const auto json = nlohmann::json::parse(read_file(WISP_TEXT_MARKED));
  return json;
}

nlohmann::json file_with(const nlohmann::json& overrides) {
  nlohmann::json file = marked()["file"];
  file.update(overrides);
  return file;
}

TEST(SpaceMarks, EncodesAsTheReferenceDoes) {
  for (const auto& [name, variant] : marked()["variants"].items()) {
    const Tokenizer tokenizer = load_or_die(file_with(variant["overrides"]));
    for (const auto& row : variant["rows"]) {
      const auto text = row[0].get<std::string>();
      SCOPED_TRACE(name + ": " + row[0].dump());
      const auto ids = tokenizer.encode(text, true), plain = tokenizer.encode(text, false);
      ASSERT_TRUE(ids.ok()) << ids.error().text;
      EXPECT_EQ(*ids, row[1].get<Ids>());
      EXPECT_EQ(*plain, row[2].get<Ids>());
      EXPECT_EQ(tokenizer.decode(*plain, false), row[3].get<std::string>());
    }
  }
}

TEST(SpaceMarks, PartsOfAPromptBeginIt) {
  const auto overrides = marked()["variants"]["first"]["overrides"];
  const Tokenizer tokenizer = load_or_die(file_with(overrides));
  const auto begins = tokenizer.encode_up_to(100, "dog", false, true);
  const auto later = tokenizer.encode_up_to(100, "dog", false, false);
  EXPECT_EQ(tokenizer.piece_bytes((**begins).front()).front(), ' ');
  EXPECT_NE(tokenizer.piece_bytes((**later).front()).front(), ' ');
  EXPECT_FALSE((*tokenizer.encode_up_to(2, std::string(100, 'x'), false)).has_value());
}

TEST(SpaceMarks, OtherWaysAreRefusedByName) {
  const auto error_of = [](const nlohmann::json& overrides) {
    const auto t = Tokenizer::load(file_with(overrides).dump());
    return t.ok() ? std::string() : t.error().text;
  };
  EXPECT_NE(error_of({{"normalizer", {{"type", "Lowercase"}}}}).find("Lowercase"), std::string::npos);
  EXPECT_NE(
      error_of({{"pre_tokenizer", {{"type", "Whitespace"}}}, {"normalizer", nullptr}}).find("Whitespace"),
      std::string::npos);
  EXPECT_NE(error_of({{"normalizer", nullptr}}).find("no normalizer that marks spaces"), std::string::npos);
  EXPECT_NE(error_of({{"decoder", {{"type", "ByteLevel"}}}}).find("decoder"), std::string::npos);
  nlohmann::json lacks = marked()["file"]["model"];
  lacks["vocab"].erase("<0x41>");
  EXPECT_NE(error_of({{"model", lacks}}).find("no token for byte 65"), std::string::npos);
}

}  // namespace
}  // namespace wisp::text
