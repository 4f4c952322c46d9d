#include "model/draft_head.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "expect_error.hpp"
#include "model/convert.hpp"
#include "model/inspect.hpp"
#include "model/manifest.hpp"
#include "model/verify.hpp"
#include "tiny_checkpoint.hpp"

/// The layer behind the last one, which predicts the token after the next: a part of the folder, not of the
/// model.
namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using kernels::WeightFormat;
using test::expect_error;
using test::TinyCheckpoint;
using Tensors = std::map<std::string, test::TinyTensor>;

const std::vector<std::string> kCases{"deepseek_v3_published", "glm4_moe_lite_published",
                                      "glm4_moe_published", "glm_moe_dsa_draft"};

/// A converted folder and what was said of it.
struct Made {
  Manifest manifest;
  ConvertReport report;
};

Made made(const std::string& from, const std::string& to, const TargetFormats& target = {},
          bool head = true) {
  const auto report = convert({from, to, false, {}, target, head}, {});
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().text);
  if (!report.ok()) return {};
  auto m = load_manifest(to);
  EXPECT_TRUE(m.ok()) << (m.ok() ? "" : m.error().text);
  return m.ok() ? Made{*std::move(m), *report} : Made{};
}

/// A checkpoint of the oracle with its one file of tensors, to be changed.
struct Source {
  test::TempFolder temp;
  std::string folder;
  Json config;
  Tensors tensors;
  std::string layer;  ///< "model.layers.N." of the draft head

  explicit Source(const std::string& name) : folder(test::oracle_checkpoint(temp, name)) {
    config = Json::parse(test::read_file(folder + "/config.json"));
    tensors = test::read_tensors(folder + "/model.safetensors");
    layer = "model.layers." + std::to_string(config["num_hidden_layers"].get<int>()) + ".";
  }
  void write() const {
    test::write_file(folder + "/config.json", config.dump());
    test::write_file(folder + "/model.safetensors", test::safetensors_bytes(tensors));
  }
  /// Gives a model without a draft head one that is a copy of its last layer.
  void add_head() {
    const int layers = config["num_hidden_layers"].get<int>();
    config["num_nextn_predict_layers"] = 1;
    const std::string last = "model.layers." + std::to_string(layers - 1) + ".";
    Tensors more;
    for (const auto& [name, t] : tensors)
      if (name.starts_with(last)) more[layer + name.substr(last.size())] = t;
    const auto hidden = config["hidden_size"].get<std::uint64_t>();
    TinyCheckpoint tiny;
    for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
      tiny.add(norm, "BF16", {hidden});
    tiny.add("eh_proj.weight", "BF16", {hidden, 2 * hidden});
    for (const char* own : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight", "eh_proj.weight"})
      more[layer + own] = tiny.at(own);
    tensors.merge(more);
  }
};

std::string contents(const std::string& path) {
  return test::read_file(path);
}

bool any_of(const std::vector<std::string>& notes, const std::string& part) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& n) { return n.find(part) != n.npos; });
}

void flip_bit(const std::string& path, std::uint64_t at) {
  std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(f.get() ^ 1);
  f.seekp(static_cast<std::streamoff>(at));
  f.put(byte);
  ASSERT_TRUE(f.good()) << path;
}

/// It has files and an entry of its own; what a folder is without them is the same, byte by byte.
TEST(DraftHead, LiesBesideTheModel) {
  for (const std::string& name : kCases) {
    SCOPED_TRACE(name);
    const Source source(name);
    const std::string with = source.temp.path("with"), without = source.temp.path("without");
    const Made a = made(source.folder, with), b = made(source.folder, without, {}, false);
    ASSERT_EQ(a.manifest.draft_head.size(), 1u);
    EXPECT_TRUE(b.manifest.draft_head.empty());
    EXPECT_EQ(a.manifest.model_hash, b.manifest.model_hash);
    const auto layers = source.config["num_hidden_layers"].get<std::size_t>();
    EXPECT_EQ(a.manifest.spec.layers.size(), layers);
    EXPECT_EQ(a.manifest.experts.size(), layers);
    EXPECT_FALSE(a.manifest.spec.draft_head);

    const Manifest& head = a.manifest.draft_head.front();
    EXPECT_TRUE(head.spec.draft_head);
    EXPECT_EQ(head.spec.layers.size(), 1u);
    EXPECT_EQ(head.experts.front().extents.size(), a.manifest.spec.router.experts);
    for (const char* tensor :
         {"join", "join.embed_norm", "join.hidden_norm", "norm", "layers.0.router", "layers.0.attn.o"})
      EXPECT_TRUE(head.dense.contains(tensor)) << tensor;
    for (const char* tensor : {"embed", "head"}) EXPECT_FALSE(head.dense.contains(tensor)) << tensor;
    EXPECT_EQ(head.dense.at("join").cols, 2 * head.spec.hidden);

    std::set<std::string> only_with;
    for (const auto& f : fs::directory_iterator(with)) {
      const std::string file = f.path().filename();
      if (!fs::exists(without + "/" + file)) {
        only_with.insert(file);
      } else if (file != "manifest.json") {
        EXPECT_EQ(contents(f.path()), contents(without + "/" + file)) << file;
      }
    }
    EXPECT_EQ(only_with, (std::set<std::string>{head.dense_file, head.experts.front().file}));
    // The manifest without the entry is the other one.
    Json said = Json::parse(contents(with + "/manifest.json"));
    ASSERT_EQ(said.erase("draft_head"), 1u);
    EXPECT_EQ(said, Json::parse(contents(without + "/manifest.json")));

    EXPECT_GT(a.report.draft_head_bytes, 0u);
    EXPECT_EQ(b.report.draft_head_bytes, 0u);
    EXPECT_FALSE(any_of(a.report.notes, "left out"));
    EXPECT_TRUE(any_of(b.report.notes, "that predicts further tokens are left out"));
    const auto seen = inspect(with);
    ASSERT_TRUE(seen.ok());
    EXPECT_EQ(seen->bytes, a.report.bytes);
    EXPECT_EQ(seen->draft_head_bytes(),
              head.dense_bytes + head.spec.expert_count() * head.spec.expert.stride);
    EXPECT_EQ(inspect(source.folder)->draft_head_bytes(), seen->draft_head_bytes());
    EXPECT_EQ(inspect(without)->draft_head_bytes(), 0u);
  }
}

TEST(DraftHead, IsVerified) {
  const Source source("deepseek_v3_published");
  const std::string folder = source.temp.path("out");
  const Manifest head = made(source.folder, folder).manifest.draft_head.front();
  auto r = verify(folder, {});
  ASSERT_TRUE(r.ok()) << r.error().text;
  EXPECT_EQ(r->bad_count, 0u);
  flip_bit(folder + "/" + head.dense_file, head.dense_file_offset + head.dense.at("join").offset);
  flip_bit(folder + "/" + head.experts[0].file, head.experts[0].extents[5].offset);
  r = verify(folder, {});
  ASSERT_TRUE(r.ok());
  ASSERT_EQ(r->bad_count, 2u);
  EXPECT_EQ(r->bad[0].what, "draft head: dense tensor join");
  EXPECT_EQ(r->bad[1].what, "draft head: expert 5");
  EXPECT_EQ(r->bad[1].file, "draft-head-experts.safetensors");
  fs::remove(folder + "/" + head.dense_file);
  expect_error(load_manifest(folder), {head.dense_file, "is missing"});
}

/// What is rounded for the drive's sake is not rounded below eight bits here.
TEST(DraftHead, IsNeverRoundedToInt4) {
  struct Case {
    std::optional<WeightFormat> asked;
    WeightFormat model, head;
  };
  Source source("glm4_moe_published");
  for (const Case& c : {Case{{}, WeightFormat::kBf16, WeightFormat::kBf16},
                        {WeightFormat::kInt8, WeightFormat::kInt8, WeightFormat::kInt8},
                        {WeightFormat::kInt4, WeightFormat::kInt4, WeightFormat::kInt8}}) {
    const std::string folder = source.temp.path("out" + std::to_string(static_cast<int>(c.model)));
    const Made m = made(source.folder, folder, {c.asked, {}});
    EXPECT_EQ(m.manifest.spec.expert.gate.format, c.model);
    EXPECT_EQ(m.manifest.draft_head.front().spec.expert.gate.format, c.head);
    EXPECT_EQ(m.manifest.draft_head.front().spec.expert.down.format, c.head);
    if (c.asked) {
      EXPECT_TRUE(any_of(m.report.notes, "draft head: experts: rounding to int8"));
    }
  }
  // Stored in four bits, they stay what they are.
  const auto width = source.config["moe_intermediate_size"].get<std::uint64_t>();
  const auto hidden = source.config["hidden_size"].get<std::uint64_t>();
  source.config["quantization_config"] =
      Json::parse(contents(std::string(WISP_TEST_DATA) + "/oracle/int4/config.json"))["quantization_config"];
  TinyCheckpoint tiny;
  tiny.tensors.clear();
  for (int e = 0; e < source.config["n_routed_experts"].get<int>(); ++e)
    for (const char* part : {"gate_proj", "up_proj"}) {
      const std::string module = source.layer + "mlp.experts." + std::to_string(e) + "." + part;
      ASSERT_EQ(source.tensors.erase(module + ".weight"), 1u);
      tiny.add_packed(module, width, hidden, 32);
    }
  source.tensors.merge(tiny.tensors);
  source.write();
  for (const std::optional<WeightFormat> asked : {std::optional<WeightFormat>{}, {WeightFormat::kInt8}}) {
    const Manifest m =
        made(source.folder, source.temp.path(asked ? "coded8" : "coded"), {asked, {}}).manifest;
    EXPECT_EQ(m.spec.expert.gate.format, asked.value_or(WeightFormat::kBf16));
    EXPECT_EQ(m.draft_head.front().spec.expert.gate.format, WeightFormat::kInt4);
  }
}

/// Heads of models whose attention chooses positions: this layer has an indexer of its own, or none.
TEST(DraftHead, MayHaveAnIndexer) {
  for (const std::string name : {"deepseek_v32_published", "glm_moe_dsa_published"}) {
    for (const bool indexer : {true, false}) {
      SCOPED_TRACE(name);
      Source source(name);
      source.add_head();
      // The last layer of the second one uses another layer's choice.
      const std::string from = "model.layers.0.self_attn.indexer.";
      Tensors own;
      for (const auto& [tensor, t] : source.tensors)
        if (tensor.starts_with(from)) own[source.layer + tensor.substr(15)] = t;
      std::erase_if(source.tensors,
                    [&](const auto& t) { return t.first.starts_with(source.layer + "self_attn.indexer."); });
      if (indexer) source.tensors.merge(own);
      source.write();
      const Manifest m = made(source.folder, source.temp.path("out")).manifest;
      ASSERT_EQ(m.draft_head.size(), 1u);
      EXPECT_EQ(m.draft_head.front().spec.attention.indexer.heads != 0, indexer);
      EXPECT_NE(m.spec.attention.indexer.heads, 0u);
      EXPECT_EQ(m.draft_head.front().dense.contains("layers.0.indexer.k"), indexer);
    }
  }
}

/// Nothing of it may be missing or unknown; the way out is named.
TEST(DraftHead, IsWholeOrRefused) {
  Source source("glm4_moe_published");
  const std::string config = contents(source.folder + "/config.json");
  const Tensors whole = source.tensors;
  std::size_t refused = 0;
  for (const auto& [name, t] : whole) {
    if (!name.starts_with(source.layer) || name.find("experts.1") != name.npos) continue;
    source.tensors = whole;
    source.tensors.erase(name);
    source.write();
    const auto planned = plan_conversion(source.folder);
    if (name.ends_with("shared_head.head.weight") || name.ends_with("embed_tokens.weight")) {
      EXPECT_TRUE(planned.ok()) << name;
      continue;
    }
    const std::string shown = name.find("mlp.experts.") != name.npos ? "layer 0 expert" : name;
    expect_error(planned, {shown, "--no-draft-head"});
    EXPECT_TRUE(plan_conversion(source.folder, {}, false).ok()) << name;
    ++refused;
  }
  EXPECT_GT(refused, 30u);
  source.tensors = whole;
  source.tensors[source.layer + "another.weight"] = whole.at(source.layer + "enorm.weight");
  source.write();
  expect_error(plan_conversion(source.folder), {source.layer + "another.weight", "--no-draft-head"});
  // Its names are those of no layer of the model.
  source.tensors = whole;
  source.tensors["model.layers.1.enorm.weight"] = whole.at(source.layer + "enorm.weight");
  source.write();
  expect_error(plan_conversion(source.folder), {"model.layers.1.enorm.weight"});
  // Without the key nothing says what that layer is.
  source.tensors = whole;
  source.config.erase("num_nextn_predict_layers");
  source.write();
  expect_error(plan_conversion(source.folder), {source.layer});
}

/// The key alone makes no layer: transformers saves such models without it.
TEST(DraftHead, MayBeMissing) {
  Source source("deepseek_v3_published");
  std::erase_if(source.tensors, [&](const auto& t) { return t.first.starts_with(source.layer); });
  source.write();
  const Made m = made(source.folder, source.temp.path("out"));
  EXPECT_TRUE(m.manifest.draft_head.empty());
  EXPECT_FALSE(any_of(m.report.notes, "left out"));
  // Of two such layers the second is left out, and said so.
  Source two("deepseek_v3_published");
  two.config["num_nextn_predict_layers"] = 2;
  two.tensors["model.layers.4.enorm.weight"] = two.tensors.at("model.layers.3.enorm.weight");
  two.write();
  const Made n = made(two.folder, two.temp.path("out"));
  EXPECT_EQ(n.manifest.draft_head.size(), 1u);
  EXPECT_TRUE(
      any_of(n.report.notes, "draft head: 1 tensors of further layers that predict tokens are left out"));
}

/// A manifest that has been edited is refused by name.
TEST(DraftHead, EntriesThatDoNotFitAreRefused) {
  const Source source("glm4_moe_published");
  const std::string folder = source.temp.path("out");
  made(source.folder, folder);
  const Json good = Json::parse(contents(folder + "/manifest.json"));
  const auto refused = [&](const char* pointer, const Json& value, std::initializer_list<std::string> parts) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    expect_error(parse_manifest(bad.dump()), parts);
  };
  ASSERT_TRUE(parse_manifest(good.dump()).ok());
  refused("/draft_head/spec/hidden", 32, {"draft_head"});
  refused("/draft_head/spec/norm_eps", 0.5, {"draft_head", "not one of this model"});
  refused("/draft_head/spec/draft_head", false, {"draft_head"});
  refused("/draft_head/spec/layers", Json::array({"moe", "moe"}), {"draft_head"});
  refused("/draft_head/spec/layers", Json::array({24}), {"draft_head"});
  refused("/draft_head/dense/tensors/join/cols", 64, {"draft_head", "join"});
  refused("/draft_head/dense/file", "../dense", {"draft_head", "not a file name"});
  refused("/draft_head/experts", Json::array(), {"draft_head", "experts"});
  refused("/draft_head/experts/0/extents/1/1", "0000000000000000", {"draft_head", "hash"});
  refused("/draft_head/hash", "0000000000000000", {"draft_head", "hash"});
  refused("/draft_head", Json::array(), {"draft_head"});
  refused("/spec/draft_head", true, {"a draft head is not one layer"});
}

}  // namespace
}  // namespace wisp::model
