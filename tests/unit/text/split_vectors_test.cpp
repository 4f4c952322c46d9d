// 500 texts for each kind of vocabulary; tests/oracle/split_vectors.py made them.
#include "tests/unit/text/split_vectors.hpp"

#include "services/gateway/text/long_text.hpp"
#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {
namespace {

using Ids = std::vector<std::uint32_t>;
using Json = nlohmann::json;

/// Every row's ids, both ways, and the text of those that are the text's own bytes.
void expect_rows(const Tokenizer& tokenizer, const Json& rows) {
  ASSERT_EQ(rows.size(), 500U);
  for (const Json& row : rows) {
    const auto text = split_vectors()["texts"][row[0].get<std::size_t>()].get<std::string>();
    SCOPED_TRACE(Json(text).dump(-1, ' ', true));
    const auto plain = tokenizer.encode(text, false), special = tokenizer.encode(text, true);
    ASSERT_TRUE(plain.ok() && special.ok());
    EXPECT_EQ(*plain, row[1].get<Ids>());
    EXPECT_EQ(*special, row.back().get<Ids>());
  }
}

class SplitVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(SplitVectors, IdsAreTheReferences) {
  const Json& kind = split_vectors()["kinds"][GetParam()];
  Json file = split_vectors()["files"][kind["file"].get<std::string>()];
  file.update(kind["overrides"]);
  expect_rows(load_or_die(file), kind["rows"]);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SplitVectors,
                         ::testing::Values("qwen", "qwen_marks", "glm", "deepseek", "gpt_oss", "olmoe",
                                           "mixtral", "mixtral_first"),
                         [](const auto& test) { return std::string(test.param); });

TEST(SplitVectors, EveryKindIsTried) {
  EXPECT_EQ(split_vectors()["kinds"].size(), 8U);
}

TEST(KimiVectors, IdsAreTiktokens) {
  expect_rows(kimi_or_die(kimi_ranks(), kimi_config()), split_vectors()["kimi"]["rows"]);
}

TEST(KimiVectors, LongTextsAreCutWhereThePublisherCutsThem) {
  for (const Json& row : split_vectors()["cuts"]) {
    SCOPED_TRACE(row[0].dump(-1, ' ', true));
    std::string text;
    for (const Json& part : row[0])
      for (auto times = part[1].get<std::size_t>(); times > 0; --times) text += part[0].get<std::string>();
    std::vector<std::size_t> lengths;
    std::string joined;
    for (const std::string_view part : cut_long(text)) {
      lengths.push_back(static_cast<std::size_t>(
          std::count_if(part.begin(), part.end(), [](char c) { return (c & 0xC0) != 0x80; })));
      joined += part;
    }
    EXPECT_EQ(lengths, row[1].get<std::vector<std::size_t>>());
    EXPECT_EQ(joined, text);
  }
  EXPECT_TRUE(cut_long("").empty());
}

TEST(KimiVectors, NoTokenLiesAcrossACut) {
  const Tokenizer tokenizer = kimi_or_die(kimi_ranks(), kimi_config());
  const std::string half(kMostAlike, 'a');
  const auto whole = tokenizer.encode(half + "aaa", false), part = tokenizer.encode(half, false);
  ASSERT_TRUE(whole.ok() && part.ok());
  Ids parts = *part;
  const auto rest = tokenizer.encode("aaa", false);
  for (const std::uint32_t id : *rest) parts.push_back(id);
  EXPECT_EQ(*whole, parts);
}

}  // namespace
}  // namespace wisp::text
