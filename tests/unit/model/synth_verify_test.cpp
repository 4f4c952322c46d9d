#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "expect_error.hpp"
#include "model/convert.hpp"
#include "model/inspect.hpp"
#include "model/manifest.hpp"
#include "model/synth.hpp"
#include "model/verify.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

SynthOptions small(const std::string& to) {
  SynthOptions o;
  o.destination = to;
  o.layers = 2;
  o.hidden = 64;
  o.width = 32;
  o.experts = 6;
  o.top_k = 2;
  o.vocab = 100;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 16;
  return o;
}

void flip_bit(const std::string& path, std::uint64_t at) {
  std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(static_cast<std::streamoff>(at));
  const char c = static_cast<char>(f.get() ^ 4);
  f.seekp(static_cast<std::streamoff>(at));
  f.put(c);
}

TEST(Synth, TheSameSeedGivesTheSameBytes) {
  test::TempFolder temp;
  SynthOptions o = small(temp.path("a"));
  const auto r = synth(o, {});
  ASSERT_TRUE(r.ok()) << r.error().text;
  EXPECT_EQ(r->experts, 12u);
  o.destination = temp.path("b");
  ASSERT_TRUE(synth(o, {}).ok());
  o.destination = temp.path("c");
  o.seed = 2;
  ASSERT_TRUE(synth(o, {}).ok());
  const auto a = load_manifest(temp.path("a")), b = load_manifest(temp.path("b")),
             c = load_manifest(temp.path("c"));
  ASSERT_TRUE(a.ok()) << a.error().text;
  EXPECT_EQ(a->model_hash, b->model_hash);
  EXPECT_NE(a->model_hash, c->model_hash);
  EXPECT_NE(a->experts[0].extents[0].checksum, a->experts[0].extents[1].checksum);
  EXPECT_NE(a->experts[0].extents[0].checksum, a->experts[1].extents[0].checksum);
  std::uint64_t on_disk = 0;
  for (const auto& f : fs::directory_iterator(temp.path("a"))) on_disk += fs::file_size(f);
  EXPECT_EQ(r->bytes, on_disk);
}

TEST(Synth, WeightsHaveTheDeviationOfTheirFanIn) {
  test::TempFolder temp;
  ASSERT_TRUE(synth(small(temp.path("a")), {}).ok());
  const auto m = load_manifest(temp.path("a"));
  ASSERT_TRUE(m.ok());
  const std::string file = test::read_file(temp.path("a/experts-00000.safetensors"));
  const ExpertMatrix& g = m->spec.expert.gate;
  const char* extent = file.data() + m->experts[0].extents[0].offset;
  double sum = 0, squares = 0;
  for (std::uint32_t r = 0; r < g.rows; ++r) {
    for (std::uint32_t k = 0; k < g.cols; ++k) {
      std::uint32_t word = 0, scale = 0;
      std::memcpy(&word, extent + g.codes_offset + ((r / 16 * g.cols / 8 + k / 8) * 16 + r % 16) * 4, 4);
      std::memcpy(&scale, extent + g.scales_offset + ((r / 16 * g.cols / 32 + k / 32) * 16 + r % 16) * 2, 2);
      scale <<= 16;
      float s = 0;
      std::memcpy(&s, &scale, 4);
      const double w = (static_cast<int>(word >> (4 * (k % 8)) & 15) - 8) * static_cast<double>(s);
      sum += w;
      squares += w * w;
    }
  }
  const double n = static_cast<double>(g.rows) * g.cols, deviation = std::sqrt(squares / n);
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(deviation, 1 / std::sqrt(64.0), 0.015);
}

TEST(Synth, ShapesAndRefusals) {
  test::TempFolder temp;
  SynthOptions o;
  o.destination = temp.path("x");
  o.free_bytes = 0;
  expect_error(synth(o, {}), {"are free", "more are needed"});  // 17 GB
  o.like = "gpt-5";
  expect_error(synth(o, {}), {"gpt-5", "pocket"});
  o = small(temp.path("x"));
  o.expert_format = "int4_zero";
  expect_error(synth(o, {}), {"int4_zero"});
  o = small(temp.path("x"));
  o.group = 48;
  expect_error(synth(o, {}), {"group of the expert"});
  o = small(temp.path("x"));
  o.top_k = 7;
  expect_error(synth(o, {}), {"num_experts_per_tok", "7"});
  o = small(temp.path("x"));
  o.like = "pocket";
  o.expert_format = "bf16";
  ASSERT_TRUE(synth(o, {}).ok());
  EXPECT_TRUE(load_manifest(temp.path("x"))->spec.tied_head);
}

TEST(Verify, FindsAFlippedBitByLayerExpertFileAndOffset) {
  test::TempFolder temp;
  const std::string folder = temp.path("out");
  ASSERT_TRUE(convert({std::string(WISP_TEST_DATA) + "/pocket-dictionary", folder, false, {}}, {}).ok());
  auto r = verify(folder, {});
  ASSERT_TRUE(r.ok()) << r.error().text;
  EXPECT_EQ(r->experts, 256u);
  EXPECT_EQ(r->dense_tensors, 74u);
  EXPECT_EQ(r->bad_count, 0u);

  const auto m = load_manifest(folder);
  ASSERT_TRUE(m.ok());
  const auto& extent = m->experts[3].extents[17];
  flip_bit(folder + "/" + m->experts[3].file, extent.offset + m->spec.expert.payload - 1);
  const auto& q = m->dense.at("layers.2.attn.q");
  flip_bit(folder + "/dense.safetensors", m->dense_file_offset + q.offset);
  r = verify(folder, {});
  ASSERT_TRUE(r.ok());
  ASSERT_EQ(r->bad_count, 2u);
  EXPECT_EQ(r->bad[0].what, "dense tensor layers.2.attn.q");
  EXPECT_EQ(r->bad[0].offset, m->dense_file_offset + q.offset);
  EXPECT_EQ(r->bad[1].what, "layer 3 expert 17");
  EXPECT_EQ(r->bad[1].file, "experts-00003.safetensors");
  EXPECT_EQ(r->bad[1].offset, extent.offset);
}

/// Whatever form a model is stored in, what convert writes passes verify and inspect, and one bit fails it.
TEST(Verify, TakesEveryFamilyAndForm) {
  std::set<kernels::WeightFormat> forms;
  for (const auto& f : fs::directory_iterator(std::string(WISP_TEST_DATA) + "/oracle")) {
    if (!f.is_directory()) continue;
    SCOPED_TRACE(f.path().filename());
    test::TempFolder temp;
    const std::string source = temp.path("source"), folder = temp.path("out");
    fs::create_directory(source);
    for (const auto& part : fs::directory_iterator(f))
      if (!part.path().filename().string().starts_with("expected")) fs::copy(part, source);
    const auto made = convert({source, folder, false, {}}, {});
    ASSERT_TRUE(made.ok()) << made.error().text;
    const auto before = inspect(source), after = inspect(folder);
    ASSERT_TRUE(before.ok()) << before.error().text;
    ASSERT_TRUE(after.ok()) << after.error().text;
    EXPECT_EQ(before->bytes, made->bytes);
    EXPECT_EQ(after->bytes, made->bytes);
    const ExpertShape &planned = before->manifest.spec.expert, &there = after->manifest.spec.expert;
    EXPECT_EQ(planned.gate.format, there.gate.format);
    EXPECT_EQ(planned.stride, there.stride);
    forms.insert(there.gate.format);
    auto r = verify(folder, {});
    ASSERT_TRUE(r.ok()) << r.error().text;
    EXPECT_EQ(r->bad_count, 0u);
    EXPECT_EQ(r->experts, made->experts);
    EXPECT_EQ(r->dense_tensors, made->dense_tensors);
    for (std::size_t layer = 0; layer < after->manifest.experts.size(); ++layer) {
      const LayerExperts& e = after->manifest.experts[layer];
      if (!e.file.empty()) flip_bit(folder + "/" + e.file, e.extents.back().offset + there.payload - 1);
    }
    r = verify(folder, {});
    EXPECT_EQ(r->bad_count, after->manifest.spec.moe_layers());
  }
  using F = kernels::WeightFormat;
  EXPECT_EQ(forms, (std::set<F>{F::kF32, F::kBf16, F::kInt4, F::kMxfp4, F::kInt4Zero, F::kFp8}));
}

TEST(Verify, NamesOnlyTheFirstBadPartsButCountsAll) {
  test::TempFolder temp;
  const std::string folder = temp.path("out");
  ASSERT_TRUE(synth(small(folder), {}).ok());
  const std::string path = folder + "/experts-00001.safetensors";
  test::write_file(path, std::string(fs::file_size(path), '\0'));
  test::write_file(folder + "/experts-00000.safetensors", std::string(fs::file_size(path), '\0'));
  test::write_file(folder + "/dense.safetensors",
                   std::string(fs::file_size(folder + "/dense.safetensors"), '\0'));
  const auto r = verify(folder, {});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->bad.size(), 20u);
  EXPECT_EQ(r->bad_count, r->experts + r->dense_tensors);
  expect_error(verify(temp.path("none"), {}), {"manifest.json"});
}

}  // namespace
}  // namespace wisp::model
