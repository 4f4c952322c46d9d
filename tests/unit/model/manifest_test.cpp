#include "model/manifest.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "expect_error.hpp"
#include "model/convert.hpp"
#include "model/extent_lists.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using kernels::WeightFormat;
using test::expect_error;

TEST(Layout, PocketDictionary) {
  const ExpertShape e =
      lay_out_expert(256, 128, {WeightFormat::kInt4, WeightFormat::kInt4, 32, 32, false, false});
  EXPECT_EQ(e.gate.codes_offset, 0u);
  EXPECT_EQ(e.gate.scales_offset, 16384u);
  EXPECT_EQ(e.up.codes_offset, 18432u);
  EXPECT_EQ(e.up.scales_offset, 34816u);
  EXPECT_EQ(e.down.codes_offset, 36864u);
  EXPECT_EQ(e.down.scales_offset, 53248u);
  EXPECT_EQ(e.payload, 55296u);
  EXPECT_EQ(e.stride, 57344u);
}

TEST(Layout, PlanesAreAlignedWhateverTheShape) {
  for (const std::uint32_t width : {1u, 17u, 32u, 96u}) {
    for (const auto f : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt4}) {
      const std::uint32_t group = f == WeightFormat::kInt4 ? 32 : 0;
      const ExpertShape e = lay_out_expert(96, width, {f, f, group, group, false, false});
      for (const auto* m : {&e.gate, &e.up, &e.down}) {
        EXPECT_EQ(m->codes_offset % 64, 0u);
        EXPECT_EQ(m->scales_offset % 64, 0u);
        EXPECT_EQ(m->scales_offset != 0, f == WeightFormat::kInt4);
      }
      EXPECT_EQ(e.stride % 4096, 0u);
      EXPECT_LT(e.stride - e.payload, 4096u);
    }
  }
}

class ManifestTest : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyCheckpoint tiny(test::TinyCheckpoint::Experts::kInt4);
    tiny.config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.5}, {"mscale", 0.7}};
    tiny.write(temp_.path("src"));
    const auto r = convert({temp_.path("src"), folder_, false, {}}, {});
    ASSERT_TRUE(r.ok()) << r.error().text;
    text_ = test::read_file(folder_ + "/manifest.json");
    json_ = Json::parse(text_);
  }

  void expect_refused(const char* pointer, const Json& value, std::initializer_list<std::string> says) {
    Json changed = json_;
    changed[Json::json_pointer(pointer)] = value;
    SCOPED_TRACE(pointer);
    expect_error(parse_manifest(changed.dump()), says);
  }

  test::TempFolder temp_;
  std::string folder_ = temp_.path("the model"), text_;
  Json json_;
};

TEST_F(ManifestTest, ListsOfExtentsReadAlikeInAnyForm) {
  const auto written = parse_manifest(text_), edited = parse_manifest(Json::parse(text_).dump(2));
  ASSERT_TRUE(written.ok()) << written.error().text;
  ASSERT_TRUE(edited.ok()) << edited.error().text;
  EXPECT_EQ(write_manifest(*written), write_manifest(*edited));
  EXPECT_EQ(cut_extent_lists(text_).lists.size(), written->experts.size()) << "the short way is taken";
  EXPECT_TRUE(cut_extent_lists(Json::parse(text_).dump(2)).lists.empty());
}

TEST(ExtentLists, TakesTheWrittenFormAlone) {
  const auto cut = [](const std::string& list) { return cut_extent_lists("{\"extents\":" + list + "}"); };
  const auto one = cut("[[4096,\"0123456789abcdef\"],[18446744073709551615,\"FFFFFFFFFFFFFFFF\"]]");
  EXPECT_EQ(one.rest, "{\"extents\":0}");
  ASSERT_EQ(one.lists.size(), 1u);
  EXPECT_EQ(one.lists[0][0].checksum, 0x0123456789abcdefu);
  EXPECT_EQ(one.lists[0][1].offset, UINT64_MAX);
  for (const char* other :
       {"[]", "[[]]", "[[1,\"0123456789abcde\"]]", "[[-1,\"0123456789abcdef\"]]",
        "[[01,\"0123456789abcdef\"]]", "[[1,\"0123456789abcdeg\"]]", "[[1,\"0123456789abcdef\"],]",
        "[[1,\"0123456789abcdef\"]", "[[1.0,\"\"]]", "[[18446744073709551616,\"0123456789abcdef\"]]",
        "[[1, \"0123456789abcdef\"]]", "0", ""}) {
    EXPECT_TRUE(cut(other).lists.empty()) << other;
    EXPECT_EQ(cut(other).rest, "{\"extents\":" + std::string(other) + "}") << other;
  }
}

TEST_F(ManifestTest, TextSurvivesTheRoundTrip) {
  const auto m = parse_manifest(text_);
  ASSERT_TRUE(m.ok()) << m.error().text;
  EXPECT_EQ(write_manifest(*m), text_);
  EXPECT_EQ(m->name, "src");
  EXPECT_EQ(m->generation.temperature, 0.7f);
  EXPECT_TRUE(m->generation.sample);
  EXPECT_EQ(m->generation.eos, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(m->spec.norm_eps, 1e-6f);
  ASSERT_TRUE(m->spec.attention.rope.yarn);
  EXPECT_EQ(m->spec.attention.rope.yarn->factor, 2.5);
  EXPECT_EQ(m->spec.attention.rope.yarn->mscale, 0.7);
  EXPECT_FALSE(m->spec.tied_head);
}

TEST_F(ManifestTest, LiesAreRefusedByName) {
  expect_refused("/layout_version", 1, {"layout_version 1", "wisp convert --force CHECKPOINT FOLDER"});
  expect_refused("/model_hash", "0123456789abcdef", {"model_hash"});
  // A number that would be as good as the right one.
  expect_refused("/spec/attention/rope/theta", 9e6, {"model_hash does not go with"});
  expect_refused("/spec/attention/rope/interleaved", true, {"model_hash does not go with"});
  expect_refused("/model_hash", "0x", {"model_hash", "16 hex digits"});
  expect_refused("/profile", "sloppy", {"profile sloppy"});
  expect_refused("/spec/hidden", 0, {"hidden is 0"});
  expect_refused("/spec/hidden", 96, {"payload"});
  expect_refused("/spec/attention/kv_heads", 3, {"kv_heads"});
  expect_refused("/spec/attention/rope/width", 18, {"rope width"});
  Json llama3{{"factor", 8.0}, {"original_length", 32.0}, {"low_turns", 1.0}, {"high_turns", 4.0}};
  expect_refused("/spec/attention/rope/llama3", llama3, {"by yarn and by llama3"});
  expect_refused("/spec/attention/rope", {{"theta", 1e4}, {"width", 16}, {"llama3", llama3}},
                 {"model_hash does not go with"});
  llama3["low_turns"] = 4.0;
  expect_refused("/spec/attention/rope", {{"theta", 1e4}, {"width", 16}, {"llama3", llama3}}, {"high_turns"});
  expect_refused("/spec/router/top_k", 5, {"top_k is 5"});
  expect_refused("/spec/router/kind", "sigmoid", {"kind sigmoid"});
  expect_refused("/spec/expert/gate_up/group", 48, {"group"});
  expect_refused("/spec/expert/stride", 8192, {"stride"});
  expect_refused("/spec/expert/down/format", "int3", {"format int3"});
  expect_refused("/spec/layers/0", "dense", {"layers"});
  expect_refused("/spec/layers/0", 48, {"layers.0.ffn.gate is missing"});
  expect_refused("/texts", {{"../secret", {{"bytes", 1}}}}, {"../secret", "not a file"});
  expect_refused("/texts", {{"a", {{"bytes", 1}, {"checksum", "0"}}}},
                 {"texts", "a: checksum", "16 hex digits"});
  expect_refused("/texts", {{"a", {{"bytes", -1}}}}, {"bytes"});
  expect_refused("/dense/file", "../secret", {"not a file name"});
  expect_refused("/dense/file_offset", 100, {"file_offset"});
  expect_refused("/dense/tensors/embed/rows", 41, {"embed", "41 x 64", "40 x 64"});
  expect_refused("/dense/tensors/embed/bytes", 64, {"embed", "bytes is 64"});
  expect_refused("/dense/tensors/embed/offset", 32, {"embed", "offset"});
  expect_refused("/dense/tensors/embed/offset", 18446744073709551552u, {"embed", "leaves the data section"});
  expect_refused("/dense/tensors/norm/offset", 0, {"overlap"});
  expect_refused("/dense/tensors/embed/format", "int4", {"embed", "group", "does not go with the format"});
  expect_refused("/dense/tensors/more", {{"rows", 1}}, {"tensors that the model lacks"});
  expect_refused("/experts/0", nullptr, {"layer 0"});
  expect_refused("/experts/0/file", "/etc/passwd", {"not a file name"});
  expect_refused("/experts/0/file", json_["experts"][1]["file"], {"twice"});
  expect_refused("/experts/0/extents", 0, {"experts"});
  expect_refused("/experts/0/extents", 1, {"experts"});
  expect_refused("/experts/0/extents/1/0", 4097, {"layer 0 expert 1", "4097"});
  expect_refused("/experts/0/extents/1/0", json_["experts"][0]["extents"][0][0], {"overlap"});
  expect_refused("/experts/0/extents/1/1", "xyz", {"layer 0 expert 1", "16 hex digits"});
  expect_refused("/experts/0/extents/1/1", "0000000000000000", {"model_hash"});
  expect_refused("/generation/eos", {40}, {"eos"});
  expect_refused("/generation/temperature", "hot", {"temperature"});
  Json shorter = json_;
  shorter["experts"].erase(1);
  expect_error(parse_manifest(shorter.dump()), {"experts has 1 entries"});
  for (const auto& [key, value] : json_.items()) {
    Json without = json_;
    without.erase(key);
    SCOPED_TRACE(key);
    if (key == "fast_measured_on")  // folders from before the measurements lack it
      EXPECT_EQ(parse_manifest(without.dump())->fast_measured_on, "");
    else
      expect_error(parse_manifest(without.dump()), {key});
  }
}

TEST_F(ManifestTest, AnotherLayoutIsRefusedWithTheCommandThatMakesItAnew) {
  json_["layout_version"] = kLayoutVersion + 1;
  std::ofstream(folder_ + "/manifest.json") << json_.dump();
  expect_error(load_manifest(folder_),
               {folder_ + ": ", "layout_version", "wisp convert --force CHECKPOINT " + folder_});
}

TEST_F(ManifestTest, EveryCutIsAnError) {
  for (std::size_t n = 0; n + 3 < text_.size(); n += 7) {
    ASSERT_FALSE(parse_manifest(std::string_view(text_).substr(0, n)).ok()) << n;
  }
}

TEST_F(ManifestTest, FilesAreHeldAgainstIt) {
  ASSERT_TRUE(load_manifest(folder_).ok());
  const std::string experts = folder_ + "/experts-00001.safetensors";
  fs::resize_file(experts, fs::file_size(experts) - 1);
  expect_error(load_manifest(folder_), {"experts-00001.safetensors", "bytes"});
  fs::remove(experts);
  expect_error(load_manifest(folder_), {"experts-00001.safetensors", "missing"});
  fs::remove(folder_ + "/dense.safetensors");
  expect_error(load_manifest(folder_), {"dense.safetensors"});
  EXPECT_EQ(load_manifest(temp_.path("none")).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace wisp::model
