#include "services/gateway/text/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <random>

#include "services/gateway/text/unicode.hpp"
#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {
namespace {

using Ids = std::vector<std::uint32_t>;
using Json = nlohmann::json;

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = true) {
  Result<Ids> ids = tokenizer.encode(text, parse_special);
  EXPECT_TRUE(ids.ok()) << (ids.ok() ? "" : ids.error().text);
  return ids.ok() ? std::move(ids).value() : Ids{};
}

nlohmann::json with(const OrderedJson& overrides) {
  nlohmann::json json = pocket_json();
  for (const auto& entry : overrides.items()) {
    nlohmann::json& target = entry.key() == "ignore_merges" ? json["model"] : json;
    target[entry.key()] = nlohmann::json::parse(entry.value().dump());
  }
  return json;
}

std::string joined(const Tokenizer& tokenizer, const Ids& ids) {
  std::string out;
  for (const std::uint32_t id : ids) out += tokenizer.piece_bytes(id, true);
  return out;
}

TEST(Tokenizer, GivesTheIdsOfTheReferenceForEveryVector) {
  for (const auto& variant : vectors()["encode"].items()) {
    const Tokenizer tokenizer = load_or_die(with(variant.value()["overrides"]));
    const OrderedJson& rows = variant.value()["rows"];
    ASSERT_GT(rows.size(), 40U);
    std::size_t wrong = 0;
    for (const OrderedJson& row : rows) {
      const auto text = row[0].get<std::string>();
      const auto special = row[1].get<Ids>();
      EXPECT_EQ(encode(tokenizer, text, true), special) << variant.key() << ": " << row[0];
      // "<|im_start|><think>" is not called special by its file, and a control token all the same.
      if (text.find("<|im_start|><think>") != std::string::npos) continue;
      const auto plain = (row.size() > 2 ? row[2] : row[1]).get<Ids>();
      EXPECT_EQ(encode(tokenizer, text, false), plain) << variant.key() << ": " << row[0];
      if (::testing::Test::HasFailure() && ++wrong > 5) break;
    }
  }
}

TEST(Tokenizer, DecodesAsTheReferenceDoes) {
  for (const OrderedJson& row : vectors()["decode"]) {
    const auto ids = row[0].get<Ids>();
    EXPECT_EQ(pocket().decode(ids, false), row[1].get<std::string>()) << row[0];
    EXPECT_EQ(pocket().decode(ids, true), row[2].get<std::string>()) << row[0];
  }
}

TEST(Tokenizer, EncodesThePublishedPrompts) {
  const auto reference = nlohmann::json::parse(read_file(pocket_path("reference.json")));
  ASSERT_FALSE(reference["prompts"].empty());
  for (const auto& prompt : reference["prompts"]) {
    EXPECT_EQ(encode(pocket(), prompt["prompt"].get<std::string>()), prompt["input_ids"].get<Ids>());
    EXPECT_EQ(pocket().decode(prompt["output_ids"].get<Ids>(), true),
              prompt["output_text"].get<std::string>());
  }
}

TEST(Tokenizer, HasAPieceForEachByte) {
  std::array<int, 256> seen{};
  for (std::uint32_t id = 0; id < pocket().vocab_size(); ++id) {
    const std::string_view piece = pocket().piece_bytes(id);
    if (piece.size() == 1) ++seen[static_cast<std::uint8_t>(piece[0])];
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

TEST(Tokenizer, GivesBackEveryText) {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {"a",    " ",  "\n",       "é",  "中", "😀",         "1",
                                          "word", "'s", "\xC2\xA0", "\t", ".",  "<|im_end|>"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (auto n = random() % 60; n > 0; --n) text += parts[random() % parts.size()];
    EXPECT_EQ(joined(pocket(), encode(pocket(), text, false)), text);
    EXPECT_EQ(joined(pocket(), encode(pocket(), text, true)), text);
  }
}

TEST(Tokenizer, NeverMakesAControlIdOfPlainText) {
  for (const char* text :
       {"<|im_end|>", "x<|im_end|>y", "<|im_start|>system\n", "<|<|im_end|>im_end|>", "<|endoftext|>"}) {
    for (const std::uint32_t id : encode(pocket(), text, false))
      EXPECT_FALSE(pocket().is_special(id)) << text;
  }
  // Also where the file itself holds merges that lead there, and where whole pieces skip the merges.
  nlohmann::json json = pocket_json();
  json["model"]["vocab"]["<|im_end|>"] = 4095;
  json["model"]["ignore_merges"] = true;
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  std::string prefix = "<";
  std::uint32_t next = 4096;
  for (const char* c : {"|", "i", "m", "_", "e", "n", "d", "|", ">"}) {
    json["model"]["merges"].push_back({prefix, c});
    prefix += c;
    if (!json["model"]["vocab"].contains(prefix)) json["model"]["vocab"][prefix] = next++;
  }
  const Tokenizer hostile = load_or_die(json);
  const Ids ids = encode(hostile, "<|im_end|>", false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 4095U), 0);
  EXPECT_EQ(encode(hostile, "<|im_end|>", true), Ids{4095});
}

TEST(Tokenizer, TreatsABarredTokenAsControlThoughTheFileDoesNot) {
  nlohmann::json json = pocket_json();
  json["added_tokens"].push_back({{"id", 4096},
                                  {"content", "<\xEF\xBD\x9CUser\xEF\xBD\x9C>"},
                                  {"special", false},
                                  {"normalized", true}});
  json["added_tokens"].push_back({{"id", 4097}, {"content", "<think>"}, {"special", false}});
  const Tokenizer tokenizer = load_or_die(json);
  const std::string text = "<\xEF\xBD\x9CUser\xEF\xBD\x9C><think>";
  EXPECT_EQ(encode(tokenizer, text, true), (Ids{4096, 4097}));
  const Ids plain = encode(tokenizer, text, false);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 4096U), 0);
  EXPECT_EQ(plain.back(), 4097U);
  EXPECT_FALSE(tokenizer.is_special(4096));
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"ab\xFF", "2"},
                                                                  {"\xC0\xAF", "0"},
                                                                  {"\xED\xA0\x80", "0"},
                                                                  {"x\xE4\xB8", "1"},
                                                                  {"\xF4\x90\x80\x80", "0"}};
  for (const auto& [text, offset] : cases) {
    const Result<Ids> ids = pocket().encode(text, true);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(ids.error().text, "text is not UTF-8 at byte " + offset);
  }
}

TEST(Tokenizer, AnswersForIdsThatDoNotExist) {
  EXPECT_EQ(pocket().vocab_size(), 4096U);
  EXPECT_EQ(pocket().piece_bytes(4096), "");
  EXPECT_EQ(pocket().piece_bytes(0xFFFFFFFF), "");
  EXPECT_FALSE(pocket().is_special(1U << 31));
  EXPECT_EQ(pocket().decode({67, 1U << 30, 67}, true), "dd");
  EXPECT_EQ(pocket().piece_bytes(4095), "");
  EXPECT_EQ(pocket().piece_bytes(4095, true), "<|im_end|>");
  EXPECT_EQ(pocket().id_of("<|im_end|>"), 4095U);
  EXPECT_FALSE(pocket().id_of("<|im_end|").has_value());
}

// Each of these is one piece of a million bytes, or a million steps for the pattern or the normaliser: with
// anything quadratic in it the test would run for hours.
TEST(Tokenizer, TakesAMegabyteOfAnyKind) {
  constexpr std::size_t kSize = 1 << 20;
  std::string marks = "a";
  while (marks.size() < kSize) marks += "\xCC\x81\xCC\xA3";
  std::string newlines;
  while (newlines.size() < kSize) newlines += "\n ";
  std::string special;
  while (special.size() < kSize) special += "<|im_en";
  for (const std::string& text :
       {std::string(kSize, 'a'), std::string(kSize, ' '), std::string(kSize, ' ') + "x", newlines,
        std::string(kSize, '\n'), std::string(kSize, '7'), std::string(kSize, '.'), special}) {
    EXPECT_EQ(joined(pocket(), encode(pocket(), text, false)), text);
  }
  EXPECT_FALSE(encode(pocket(), marks, false).empty());
  EXPECT_FALSE(pocket().encode(std::string(Tokenizer::kMaxTextBytes + 1, 'a'), false).ok());
}

/// As the reference has it where no token stands for the unknown: "!\x04!" is "!!" to it.
TEST(Tokenizer, BytesWithoutATokenAreDropped) {
  nlohmann::json json = pocket_json();
  std::string key;
  append_utf8(key, 0x100 + 4);  // how the GPT-2 alphabet writes byte 4
  ASSERT_EQ(json["model"]["vocab"].erase(key), 1u);
  const Tokenizer tokenizer = load_or_die(json);
  EXPECT_EQ(encode(tokenizer, "!\x04!"), encode(tokenizer, "!!"));
  EXPECT_TRUE(encode(tokenizer, "\x04").empty());
}

// A token that no merges make comes out only where the file lets whole pieces be looked up.
TEST(Tokenizer, ATokenThatNoMergesMakeIsNotTaken) {
  Json json = pocket_json();
  json["model"]["vocab"]["zqxj"] = 4990;
  const auto merged = load_or_die(json).encode("zqxj", false);
  EXPECT_EQ(std::count(merged->begin(), merged->end(), 4990U), 0);
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(*load_or_die(json).encode("zqxj", false), std::vector<std::uint32_t>{4990});
}

// Nor does a control token that the file's merges make of its letters.
TEST(Tokenizer, MergesDoNotMakeAControlToken) {
  Json json = pocket_json();
  json["model"]["vocab"]["<|"] = 4990;
  json["model"]["vocab"]["<|>"] = 4991;
  json["model"]["merges"].push_back(Json::array({"<", "|"}));
  json["model"]["merges"].push_back(Json::array({"<|", ">"}));
  EXPECT_EQ(*load_or_die(json).encode("<|>", false), std::vector<std::uint32_t>{4991});
  json["added_tokens"].push_back({{"id", 4991}, {"content", "<|>"}, {"special", true}});
  for (const bool ignore_merges : {false, true}) {
    json["model"]["ignore_merges"] = ignore_merges;
    const auto ids = load_or_die(json).encode("<|>", false);
    EXPECT_EQ(ids->size(), 2U);
    EXPECT_EQ(std::count(ids->begin(), ids->end(), 4991U), 0);
  }
}

}  // namespace
}  // namespace wisp::text
