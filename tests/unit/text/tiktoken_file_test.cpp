#include <functional>

#include "tests/unit/text/split_vectors.hpp"

namespace wisp::text {
namespace {

using Json = nlohmann::json;

TEST(TiktokenFile, NamesControlTokensAndReservesTheOthers) {
  const Tokenizer tokenizer = kimi_or_die(kimi_ranks(), kimi_config());
  const std::uint32_t first = *tokenizer.id_of("[BOS]");
  EXPECT_EQ(tokenizer.vocab_size(), first + Tokenizer::kReservedIds);
  EXPECT_EQ(*tokenizer.id_of("<|im_end|>"), first + 2);
  EXPECT_EQ(*tokenizer.id_of("<|reserved_token_" + std::to_string(first + 5) + "|>"), first + 5);
  EXPECT_EQ(*tokenizer.id_of("[PAD]"), first + 255);
  // The file calls role marks of tools not special: they are written out, but never made from a user's text.
  const std::uint32_t call = *tokenizer.id_of("<|tool_call_begin|>");
  EXPECT_FALSE(tokenizer.is_special(call));
  EXPECT_EQ(*tokenizer.encode("<|tool_call_begin|>", true), std::vector{call});
  const auto text = tokenizer.encode("<|tool_call_begin|>[EOS]<think>", false);
  for (const std::uint32_t id : *text) EXPECT_LT(id, first);
  EXPECT_EQ(tokenizer.decode(*tokenizer.encode("d\u00e9j\u00e0 \u4e2d\u6587 123", false), false),
            "d\u00e9j\u00e0 \u4e2d\u6587 123");
}

struct Damage {
  const char* name;
  std::function<void(std::string& ranks, Json& config)> damage;
  ErrorCode code;
  const char* text;  // a part of the message
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.name;
}

class DamagedTiktokenFile : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedTiktokenFile, IsRefusedByName) {
  std::string ranks = kimi_ranks();
  Json config = kimi_config();
  GetParam().damage(ranks, config);
  const Result<Tokenizer> loaded = Tokenizer::load_tiktoken(ranks, config.is_null() ? "" : config.dump());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, GetParam().code) << loaded.error().text;
  EXPECT_NE(loaded.error().text.find(GetParam().text), std::string::npos) << loaded.error().text;
}

/// Where line `number` (from 1 on) begins.
std::size_t line_at(const std::string& text, std::size_t number) {
  std::size_t at = 0;
  while (--number > 0) at = text.find('\n', at) + 1;
  return at;
}

void replace_line(std::string& text, std::size_t number, const std::string& by) {
  const std::size_t at = line_at(text, number);
  text.replace(at, text.find('\n', at) - at, by);
}

constexpr auto kInvalid = ErrorCode::kInvalid;
using R = std::string;

INSTANTIATE_TEST_SUITE_P(
    Ranks, DamagedTiktokenFile,
    ::testing::Values(
        Damage{"empty", [](R& r, Json&) { r.clear(); }, kInvalid, "tiktoken.model: no token for byte 0"},
        Damage{"cut_in_a_line", [](R& r, Json&) { r.resize(line_at(r, 900) + 3); }, kInvalid,
               "tiktoken.model: line 900: not a token in base64"},
        Damage{"cut_between_lines", [](R& r, Json&) { r.resize(line_at(r, 900)); }, kInvalid,
               "is tiktoken.model complete?"},
        Damage{"no_base64", [](R& r, Json&) { replace_line(r, 300, "!!!! 299"); }, kInvalid,
               "line 300: not a token"},
        Damage{"bad_padding", [](R& r, Json&) { replace_line(r, 300, "QQ=A 299"); }, kInvalid, "line 300"},
        Damage{"loose_bits", [](R& r, Json&) { replace_line(r, 300, "QR== 299"); }, kInvalid, "line 300"},
        Damage{"no_id", [](R& r, Json&) { replace_line(r, 300, "QUJD"); }, kInvalid, "line 300"},
        Damage{"id_text", [](R& r, Json&) { replace_line(r, 300, "QUJD x"); }, kInvalid, "line 300"},
        Damage{"id_huge", [](R& r, Json&) { replace_line(r, 300, "enp6eg== 4000000000"); }, kInvalid,
               "out of range"},
        Damage{"id_twice", [](R& r, Json&) { replace_line(r, 300, "enp6eg== 5"); }, kInvalid,
               "line 300: id 5 belongs to"},
        Damage{"token_twice", [](R& r, Json&) { replace_line(r, 300, "QQ== 299"); }, kInvalid,
               "stands there twice"},
        Damage{"line_gone", [](R& r, Json&) { replace_line(r, 300, ""); }, kInvalid, "id 299 is missing"},
        Damage{"token_long", [](R& r, Json&) { replace_line(r, 300, std::string(4096, 'Q') + " 299"); },
               kInvalid, "longer than 512"}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Config, DamagedTiktokenFile,
    ::testing::Values(Damage{"absent", [](R&, Json& c) { c = nullptr; }, kInvalid,
                             "tokenizer_config.json: not a JSON object"},
                      Damage{"array", [](R&, Json& c) { c = Json::array(); }, kInvalid,
                             "tokenizer_config.json: not a JSON object"},
                      Damage{"no_names", [](R&, Json& c) { c.erase("added_tokens_decoder"); }, kInvalid,
                             "added_tokens_decoder"},
                      Damage{"other_class", [](R&, Json& c) { c["tokenizer_class"] = "QWenTokenizer"; },
                             ErrorCode::kUnsupported, "QWenTokenizer"},
                      Damage{"id_text",
                             [](R&, Json& c) {
                               c["added_tokens_decoder"]["x"] = {{"content", "a"}};
                             },
                             kInvalid, "not an id"},
                      Damage{"id_below",
                             [](R&, Json& c) {
                               c["added_tokens_decoder"]["5"] = {{"content", "a"}};
                             },
                             kInvalid, "is tiktoken.model complete?"},
                      Damage{"no_content",
                             [](R&, Json& c) { (*c["added_tokens_decoder"].begin()).erase("content"); },
                             kInvalid, "has no content"},
                      Damage{"name_twice",
                             [](R&, Json& c) { (*c["added_tokens_decoder"].begin())["content"] = "[PAD]"; },
                             kInvalid, "stands there twice"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(TiktokenFile, LineEndsOfAnotherSystemChangeNothing) {
  std::string ranks;
  for (const char c : kimi_ranks()) ranks += c == '\n' ? std::string("\r\n") : std::string(1, c);
  const Tokenizer tokenizer = kimi_or_die(ranks, kimi_config());
  EXPECT_EQ(*tokenizer.encode("What is a dog?", false),
            *kimi_or_die(kimi_ranks(), kimi_config()).encode("What is a dog?", false));
}

}  // namespace
}  // namespace wisp::text
