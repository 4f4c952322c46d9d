#include "services/gateway/text/pre_tokenizer.hpp"

#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {
namespace {

/// The patterns of Qwen, GLM, Qwen 3.5, DeepSeek, o200k and GPT-2 cut texts of every category of characters
/// where the reference cuts them (tests/oracle/tokenizer_vectors.py).
TEST(PreTokenizer, CutsWhereTheReferenceDoes) {
  const auto expected = nlohmann::json::parse(read_file(WISP_TEXT_PIECES));
  const auto& texts = expected["texts"];
  ASSERT_GT(texts.size(), 28u);
  for (const auto& [name, rows] : expected["pieces"].items()) {
    const auto& overrides = vectors()["encode"][name]["overrides"];
    const auto config = overrides.contains("pre_tokenizer")
                            ? nlohmann::json::parse(overrides["pre_tokenizer"].dump())
                            : pocket_json()["pre_tokenizer"];
    const auto pre_tokenizer = PreTokenizer::parse(config);
    ASSERT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.error().text;
    ASSERT_EQ(rows.size(), texts.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto text = texts[i].get<std::string>();
      std::vector<PreTokenizer::Range> pieces;
      ASSERT_TRUE(pre_tokenizer->split(text, pieces).ok());
      std::vector<std::size_t> got;
      for (const auto& piece : pieces) got.push_back(piece.end - piece.begin);
      EXPECT_EQ(got, rows[i].get<std::vector<std::size_t>>()) << name << ": " << texts[i];
    }
  }
  EXPECT_EQ(expected["pieces"].size(), 6u);
}

}  // namespace
}  // namespace wisp::text
