#include <functional>

#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {
namespace {

using Json = nlohmann::json;

struct Refusal {
  const char* name;
  std::function<void(Json&)> damage;
  ErrorCode code;
  const char* text;  // a part of the message
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

class TokenizerFile : public ::testing::TestWithParam<Refusal> {};

TEST_P(TokenizerFile, IsRefusedByName) {
  Json json = pocket_json();
  GetParam().damage(json);
  const Result<Tokenizer> loaded = Tokenizer::load(json.dump());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, GetParam().code) << loaded.error().text;
  EXPECT_NE(loaded.error().text.find(GetParam().text), std::string::npos) << loaded.error().text;
  EXPECT_EQ(loaded.error().text.rfind("tokenizer.json: ", 0), 0U);
}

Json split_step(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

const Json kByteLevel = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};

void pre_tokenize(Json& json, std::vector<Json> steps) {
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

constexpr auto kInvalid = ErrorCode::kInvalid;
constexpr auto kUnsupported = ErrorCode::kUnsupported;

INSTANTIATE_TEST_SUITE_P(
    Hostile, TokenizerFile,
    ::testing::Values(
        Refusal{"no_model", [](Json& j) { j.erase("model"); }, kInvalid, "model: missing"},
        Refusal{"other_model", [](Json& j) { j["model"]["type"] = "Unigram"; }, kUnsupported, "Unigram"},
        Refusal{"vocab_array", [](Json& j) { j["model"]["vocab"] = Json::array(); }, kInvalid, "model.vocab"},
        Refusal{"id_range", [](Json& j) { j["model"]["vocab"]["dog"] = 1U << 30; }, kInvalid,
                "\"dog\": id 1073741824 out of range"},
        Refusal{"id_negative", [](Json& j) { j["model"]["vocab"]["dog"] = -1; }, kInvalid, "\"dog\""},
        Refusal{"id_text", [](Json& j) { j["model"]["vocab"]["dog"] = "7"; }, kInvalid, "\"dog\""},
        Refusal{"id_huge", [](Json& j) { j["model"]["vocab"]["dog"] = 1e300; }, kInvalid, "\"dog\""},
        Refusal{"id_twice", [](Json& j) { j["model"]["vocab"]["dogcat"] = 5; }, kInvalid, "id 5 belongs to"},
        Refusal{"byte_gone",
                [](Json& j) {
                  j["model"]["vocab"].erase("!");
                  j["model"]["unk_token"] = "a";
                },
                kInvalid, "no token for byte 33"},
        Refusal{"long_token", [](Json& j) { j["model"]["vocab"][std::string(5000, 'a')] = 5000; }, kInvalid,
                "longer than 4096"},
        Refusal{"merge_unknown",
                [](Json& j) {
                  j["model"]["merges"][3] = Json::array({"d", "unknown"});
                },
                kInvalid, "model.merges: [3]: piece \"unknown\" is not in the vocabulary"},
        Refusal{"merge_result", [](Json& j) { j["model"]["merges"][3] = "~ ~~~~"; }, kInvalid,
                "model.merges: [3]"},
        Refusal{"merge_three", [](Json& j) { j["model"]["merges"][0] = "a b c"; }, kInvalid,
                "model.merges: [0]"},
        Refusal{"merge_number", [](Json& j) { j["model"]["merges"][0] = 5; }, kInvalid, "model.merges: [0]"},
        Refusal{"merge_alphabet", [](Json& j) { j["model"]["merges"][0] = "\xE4\xB8\xAD a"; }, kInvalid,
                "model.merges: [0]"},
        Refusal{"added_clash", [](Json& j) { j["added_tokens"][0]["id"] = 5; }, kInvalid,
                "added_tokens[0]: id 5 belongs to"},
        Refusal{"added_twice",
                [](Json& j) {
                  j["added_tokens"].push_back({{"id", 4999}, {"content", "<|im_end|>"}});
                },
                kInvalid, "\"<|im_end|>\" stands there twice"},
        Refusal{"added_vocab",
                [](Json& j) {
                  j["added_tokens"].push_back({{"id", 4999}, {"content", "!"}});
                },
                kInvalid, "id 4999 here and 0 in the vocabulary"},
        Refusal{"added_empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }, kInvalid,
                "added_tokens[0]"},
        Refusal{"added_flag", [](Json& j) { j["added_tokens"][0]["special"] = "yes"; }, kInvalid,
                "special is not true or false"},
        Refusal{"normalizer",
                [](Json& j) {
                  j["normalizer"] = {{"type", "NFKC"}};
                },
                kUnsupported, "\"NFKC\""},
        Refusal{"pre_none", [](Json& j) { j["pre_tokenizer"] = nullptr; }, kUnsupported, "pre_tokenizer"},
        Refusal{"pre_metaspace",
                [](Json& j) {
                  j["pre_tokenizer"] = {{"type", "Metaspace"}};
                },
                kUnsupported, "\"Metaspace\""},
        Refusal{"pre_prefix",
                [](Json& j) {
                  j["pre_tokenizer"] = {{"type", "ByteLevel"}};
                },
                kUnsupported, "add_prefix_space"},
        Refusal{"pre_no_bytes", [](Json& j) { j["pre_tokenizer"] = split_step("a"); }, kUnsupported,
                "no ByteLevel"},
        Refusal{"pre_order",
                [](Json& j) {
                  pre_tokenize(j, {kByteLevel, split_step("a")});
                },
                kUnsupported, "after ByteLevel"},
        Refusal{"pre_many", [](Json& j) { pre_tokenize(j, std::vector<Json>(40, split_step("a"))); },
                kInvalid, "more than 32 steps"},
        Refusal{"pre_regex",
                [](Json& j) {
                  pre_tokenize(j, {split_step("(a"), kByteLevel});
                },
                kInvalid, "not a valid regular expression"},
        Refusal{"decoder", [](Json& j) { j["decoder"]["type"] = "Metaspace"; }, kUnsupported, "decoder"},
        Refusal{"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, kUnsupported, "dropout"},
        Refusal{"byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; }, kUnsupported,
                "byte_fallback"},
        Refusal{"suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, kUnsupported,
                "end_of_word_suffix"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(TokenizerFile, IsRefusedWhenCutOrNested) {
  const std::string whole = pocket_json().dump();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
    EXPECT_FALSE(Tokenizer::load(whole.substr(0, size)).ok());
  }
  EXPECT_FALSE(Tokenizer::load(std::string(1 << 20, '[')).ok());
  Json json = pocket_json();
  Json nested = split_step("a");
  for (int i = 0; i < 200; ++i) nested = {{"type", "Sequence"}, {"pretokenizers", Json::array({nested})}};
  json["pre_tokenizer"] = nested;
  EXPECT_FALSE(Tokenizer::load(json.dump()).ok());
}

TEST(TokenizerFile, TakesMergesAsTextAndAsPairs) {
  Json json = pocket_json();
  for (Json& merge : json["model"]["merges"]) {
    if (merge.is_array()) {
      merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    } else {
      const auto text = merge.get<std::string>();
      merge = Json::array({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
    }
  }
  const std::string text = "The courage of a dog, defined in 1234 words.";
  EXPECT_EQ(*load_or_die(json).encode(text, true), *pocket().encode(text, true));
}

// A pattern that tries exponentially many ways must end in an error, not hang.
TEST(TokenizerFile, WithACostlyPatternGivesAnError) {
  for (const char* pattern : {"(a+)+b", "(a|aa)+$", "(?:a?){40}a{40}", "(a*)*\\1b"}) {
    Json json = pocket_json();
    pre_tokenize(json, {split_step(pattern), kByteLevel});
    const Tokenizer tokenizer = load_or_die(json);
    const auto ids = tokenizer.encode(std::string(5000, 'a') + "c", true);
    if (!ids.ok()) {
      EXPECT_EQ(ids.error().code, ErrorCode::kExhausted) << ids.error().text;
    }
  }
}

}  // namespace
}  // namespace wisp::text
