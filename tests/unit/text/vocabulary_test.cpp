#include "services/gateway/text/vocabulary.hpp"

#include <filesystem>

#include "model/convert.hpp"
#include "text_fixtures.hpp"

namespace wisp::text {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kRows = 4096;  // of the bundled model: every id is named

/// The bundled vocabulary after `change`, in a model of `rows`.
template <class Change>
Vocabulary changed(const char* name, Change change, std::uint32_t rows = kRows) {
  Json json = pocket_json();
  change(json);
  return {name, rows, load_or_die(json)};
}
Vocabulary plain(const char* name, std::uint32_t rows = kRows) {
  return {name, rows, pocket()};
}

void expect_refused(const Vocabulary& target, const Vocabulary& draft,
                    const std::vector<std::string>& parts) {
  const Status s = compare_vocabularies(target, draft);
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().code, ErrorCode::kInvalid);
  for (const std::string& part : parts)
    EXPECT_NE(s.error().text.find(part), std::string::npos) << s.error().text;
}

Json& added(Json& json, const char* content) {
  for (Json& token : json["added_tokens"])
    if (token["content"] == content) return token;
  ADD_FAILURE() << content;
  return json;
}

TEST(Vocabulary, TheSameIsTheSame) {
  const Status s = compare_vocabularies(plain("target"), plain("draft"));
  EXPECT_TRUE(s.ok()) << s.error().text;
}

/// Two tokens with each other's ids: as many ids, and the same tokens.
TEST(Vocabulary, FirstIdThatDiffersIsNamedWithBothSpellings) {
  const Vocabulary other = changed("draft", [](Json& json) {
    std::swap(json["model"]["vocab"]["red"], json["model"]["vocab"]["d"]);
    std::swap(json["model"]["vocab"]["x"], json["model"]["vocab"]["y"]);
  });
  const std::string first = pocket_json()["model"]["vocab"]["d"].dump();
  expect_refused(plain("target"), other, {"draft: id " + first + " is \"red\"", "in target it is \"d\""});
}

TEST(Vocabulary, OneMerge) {
  const auto swap = [](Json& json) { std::swap(json["model"]["merges"][7], json["model"]["merges"][8]); };
  const Json& merges = pocket_json()["model"]["merges"];
  ASSERT_NE(merges[7], merges[8]);
  expect_refused(plain("target"), changed("draft", swap),
                 {"draft: merge 7 is ", "to id ", "in target it is "});
  const auto drop = [](Json& json) { json["model"]["merges"].erase(json["model"]["merges"].size() - 1); };
  const std::string last = "merge " + std::to_string(merges.size() - 1);
  expect_refused(plain("target"), changed("draft", drop), {last + " is at an end"});
  expect_refused(changed("target", drop), plain("draft"), {last, "in target it is at an end"});
}

TEST(Vocabulary, AddedToken) {
  const auto rename = [](Json& json) {
    added(json, "<|im_end|>")["content"] = "<|end|>";
    json["model"]["vocab"].erase("<|im_end|>");
  };
  expect_refused(plain("target"), changed("draft", rename),
                 {"id 4095 is \"<|end|>\"", "it is \"<|im_end|>\""});
  // How it is read and shown is not what it is.
  const auto flags = [](Json& json) {
    added(json, "<|im_end|>")["special"] = false;
    added(json, "<|im_end|>")["lstrip"] = true;
  };
  const Status s = compare_vocabularies(plain("target"), changed("draft", flags));
  EXPECT_TRUE(s.ok()) << s.error().text;
}

/// Rows behind the last token are none; and equal rows prove nothing.
TEST(Vocabulary, PaddingAndTokensOfOneAlone) {
  EXPECT_TRUE(compare_vocabularies(plain("target", 4224), plain("draft")).ok());
  EXPECT_TRUE(compare_vocabularies(plain("target"), plain("draft", 4224)).ok());

  const auto less = [](Json& json) {
    Json& tokens = json["added_tokens"];
    tokens.erase(std::find_if(tokens.begin(), tokens.end(),
                              [](const Json& t) { return t["content"] == "<|im_end|>"; }));
    json["model"]["vocab"].erase("<|im_end|>");
  };
  EXPECT_TRUE(compare_vocabularies(plain("target"), changed("draft", less)).ok());
  expect_refused(changed("target", less), plain("draft"),
                 {"id 4095 is \"<|im_end|>\"", "in target it is no token"});
  // Of those from the smaller model's rows on it proposes none.
  EXPECT_TRUE(compare_vocabularies(changed("target", less, 4095), plain("draft")).ok());

  const auto more = [](Json& json) {
    json["added_tokens"].push_back({{"id", 4096}, {"content", "<think>"}, {"special", false}});
  };
  EXPECT_TRUE(compare_vocabularies(changed("target", more, 4224), plain("draft", 4224)).ok());
  expect_refused(plain("target", 4224), changed("draft", more, 4224), {"id 4096 is \"<think>\"", "no token"});
}

TEST(Vocabulary, BytesAreShown) {
  const auto swap = [](Json& json) {  // the bytes 0xFF and 0x00
    std::swap(json["model"]["vocab"]["\u00FF"], json["model"]["vocab"]["\u0100"]);
  };
  const Vocabulary other = changed("draft", swap);
  expect_refused(plain("target"), other, {"\"\\xff\"", "\"\\x00\""});
}

TEST(Vocabulary, WithoutTokenizers) {
  const auto bare = [](const char* name, std::uint32_t rows) { return Vocabulary{name, rows, std::nullopt}; };
  EXPECT_TRUE(compare_vocabularies(bare("target", 160), bare("draft", 160)).ok());
  expect_refused(bare("target", 160), bare("draft", 128), {"draft: has 128 ids", "target has 160"});
  expect_refused(bare("target", kRows), plain("draft"), {"target: has no tokenizer"});
  expect_refused(plain("target"), bare("draft", kRows), {"draft: has no tokenizer"});
}

/// The bundled draft and the bundled model, converted.
TEST(Vocabulary, OfFolders) {
  namespace fs = std::filesystem;
  std::string pattern = (fs::temp_directory_path() / "wisp-vocabulary-XXXXXX").string();
  const fs::path folder = ::mkdtemp(pattern.data());
  for (const char* name : {"pocket-dictionary", "pocket-dictionary-draft"}) {
    model::ConvertOptions options;
    options.source = std::string(WISP_TEST_DATA) + "/" + name;
    options.destination = folder / name;
    const auto made = model::convert(options, {});
    ASSERT_TRUE(made.ok()) << made.error().text;
  }
  const std::string target = folder / "pocket-dictionary", draft = folder / "pocket-dictionary-draft";
  const Status same = compare_vocabularies(target, draft);
  EXPECT_TRUE(same.ok()) << same.error().text;
  fs::remove(draft + "/tokenizer.json");
  const Status none = compare_vocabularies(target, draft);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().text.find(draft + ": has no tokenizer"), std::string::npos) << none.error().text;
  fs::remove_all(folder);
}

}  // namespace
}  // namespace wisp::text
