#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/encode.hpp"
#include "model_fixture.hpp"
#include "oracle_cases.hpp"
#include "oracle_checks.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::compute {
namespace {

using testing::Engine;
using testing::ids_of;
using testing::kData;
using testing::LoadedModel;

std::uint32_t argmax(const std::vector<float>& v) {
  return static_cast<std::uint32_t>(std::max_element(v.begin(), v.end()) - v.begin());
}

/// Logits of Hugging Face transformers on random checkpoints, at every position.
class Oracle : public ::testing::TestWithParam<std::string> {};

TEST_P(Oracle, LogitsAtEveryPosition) {
  const std::string folder = kData + "/oracle/" + GetParam();
  const std::vector<std::uint32_t> ids = ids_of(folder);
  const std::vector<float> expected = testing::expected_logits(folder);
  auto m = LoadedModel::convert(folder);
  const std::size_t vocab = m->manifest.spec.vocab;
  ASSERT_EQ(expected.size(), vocab * ids.size());
  Engine engine(*m, kernels::best_kernels(), 1, 128, 128);
  for (std::uint32_t p = 0; p < ids.size(); ++p) {
    const std::vector<float> got = engine.rows(ids, p, 1);
    ASSERT_LE(testing::share_off(got, expected.data() + p * vocab), 1e-4f) << "position " << p;
  }
}

/// Chunks of any length, threads, the order of arrival and the instruction set leave every bit as it is.
TEST_P(Oracle, SameBitsInAnyChunks) {
  auto m = LoadedModel::convert(kData + "/oracle/" + GetParam());
  testing::expect_same_bits_in_chunks(*m, ids_of(kData + "/oracle/" + GetParam()));
}

/// A case's model and how far its logits lie from the expected ones.
struct Distance {
  float largest = 0.0f;  ///< of any position: the largest difference over the row's largest logit
  double share = 0.0;    ///< the root mean square of the differences over that of the logits
  double agree = 0.0;    ///< the share of positions with the same first token
};

Distance distance_of(const std::string& folder, LoadedModel& m) {
  const std::vector<std::uint32_t> ids = ids_of(folder);
  const std::vector<float> expected = testing::expected_logits(folder);
  const std::size_t vocab = m.manifest.spec.vocab;
  Engine engine(m, kernels::best_kernels(), 1, 128, 128);
  Distance out;
  double off = 0.0, all = 0.0;
  for (std::uint32_t p = 0; p < ids.size(); ++p) {
    const std::vector<float> got = engine.rows(ids, p, 1);
    const std::vector<float> want(expected.begin() + static_cast<std::ptrdiff_t>(p * vocab),
                                  expected.begin() + static_cast<std::ptrdiff_t>((p + 1) * vocab));
    for (std::size_t v = 0; v < vocab; ++v) {
      const auto d = static_cast<double>(got[v] - want[v]);
      off += d * d;
      all += static_cast<double>(want[v]) * static_cast<double>(want[v]);
    }
    out.largest = std::max(out.largest, testing::share_off(got, want.data()));
    out.agree += argmax(got) == argmax(want) ? 1.0 / static_cast<double>(ids.size()) : 0.0;
  }
  out.share = std::sqrt(off / all);
  return out;
}

/// Those of the cases whose experts are plain numbers.
class PlainOracle : public ::testing::TestWithParam<std::string> {};

/// Experts that convert has rounded: the logits of every family move, and stay the model's. Weights are
/// random and routing is peaky here, so four bits may change an expert; a mixed-up code or scale gives a
/// share of 1.
TEST_P(PlainOracle, RoundedExpertsStayClose) {
  using kernels::WeightFormat;
  const std::string folder = kData + "/oracle/" + GetParam();
  for (const auto format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const auto m = LoadedModel::convert(folder, {format, {}});
    const Distance d = distance_of(folder, *m);
    const bool fine = format == WeightFormat::kInt8;
    EXPECT_GT(d.share, 1e-4);  // rounding of f32 is far below
    EXPECT_LT(d.share, fine ? 0.15 : 0.5) << kernels::name_of(format);
    EXPECT_GE(d.agree, fine ? 0.9 : 0.5) << kernels::name_of(format);
  }
}

/// One number of one expert, wrong by a hundredth, is more than LogitsAtEveryPosition lets pass.
TEST_P(PlainOracle, OneWrongWeightShows) {
  const std::string folder = kData + "/oracle/" + GetParam();
  const auto m = LoadedModel::convert(folder);
  const model::ExpertMatrix& down = m->manifest.spec.expert.down;
  // The first expert of the first token in the last layer that has any.
  std::size_t layer = m->manifest.experts.size() - 1;
  while (m->manifest.experts[layer].file.empty()) --layer;
  const auto chosen = testing::expected_tensor(folder, "layers." + std::to_string(layer) + ".experts");
  std::int64_t expert = 0;
  std::memcpy(&expert, chosen.data(), 8);
  const model::LayerExperts& experts = m->manifest.experts[layer];
  const auto at = static_cast<std::streamoff>(experts.extents[static_cast<std::size_t>(expert)].offset +
                                              down.codes_offset);
  std::fstream file(m->path + "/" + experts.file, std::ios::in | std::ios::out | std::ios::binary);
  std::uint8_t raw[4] = {};
  const auto size = static_cast<std::streamsize>(kernels::row_bytes(down.format, 1));
  file.seekg(at);
  file.read(reinterpret_cast<char*>(raw), size);
  const float wrong = kernels::plain_to_float(down.format, raw) + 0.01f;
  model::RoundingError cost;
  model::encode_rows(down.format, &wrong, 1, 1, raw, {}, cost);
  file.seekp(at);
  file.write(reinterpret_cast<const char*>(raw), size);
  file.close();
  EXPECT_GT(distance_of(folder, *m).largest, 1e-4f);
}

INSTANTIATE_TEST_SUITE_P(Cases, Oracle, ::testing::ValuesIn(testing::cases()),
                         [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Cases, PlainOracle, ::testing::ValuesIn(testing::plain_cases()),
                         [](const auto& i) { return i.param; });

/// The bundled model, and the draft for it, which has no experts.
class Reference : public ::testing::TestWithParam<std::string> {};

TEST_P(Reference, GreedyAnswers) {
  auto m = LoadedModel::convert(kData + "/" + GetParam());
  std::ifstream in(kData + "/" + GetParam() + "/reference.json");
  const auto reference = nlohmann::json::parse(in);
  for (const auto& prompt : reference["prompts"]) {
    std::vector<std::uint32_t> ids = prompt["input_ids"];
    const std::vector<std::uint32_t> want = prompt["output_ids"];
    Engine engine(*m, kernels::best_kernels(), 2, 512, 512);
    std::vector<float> logits = engine.prompt(ids, 512);
    for (const auto& top : prompt["first_step_top5"])
      EXPECT_NEAR(logits[top["id"].get<std::size_t>()], top["logit"].get<float>(), 1e-3f);
    std::vector<std::uint32_t> got;
    while (got.size() < want.size()) {
      got.push_back(argmax(logits));
      ids.push_back(got.back());
      logits = engine.rows(ids, static_cast<std::uint32_t>(ids.size()) - 1, 1);
    }
    EXPECT_EQ(got, want) << prompt["prompt"];
  }
}

INSTANTIATE_TEST_SUITE_P(Bundled, Reference,
                         ::testing::Values("pocket-dictionary", "pocket-dictionary-draft"),
                         [](const auto& i) {
                           return std::string(i.param.ends_with("draft") ? "draft" : "model");
                         });

/// A row's bits depend neither on the chunking nor on threads, the order of arrival or the instruction set.
TEST(SameBits, ChunksThreadsArrivalAndInstructionSet) {
  auto m = LoadedModel::convert(kData + "/pocket-dictionary");
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < 77; ++i) ids.push_back((i * 2654435761u) % 4093u);
  const std::vector<float> whole = Engine(*m, kernels::best_kernels(), 1, 128, 128).prompt(ids, 77);
  for (const std::uint32_t chunk : {1u, 7u, 64u})
    EXPECT_EQ(Engine(*m, kernels::best_kernels(), 1, 128, 128).prompt(ids, chunk), whole)
        << "chunk " << chunk;
  EXPECT_EQ(Engine(*m, kernels::best_kernels(), 2, 128, 128).prompt(ids, 77), whole) << "two threads";
  EXPECT_EQ(Engine(*m, kernels::best_kernels(), 3, 128, 128, true).prompt(ids, 13), whole)
      << "one expert at a time";
  EXPECT_EQ(Engine(*m, kernels::ref_kernels(), 2, 128, 128).prompt(ids, 30), whole) << "ref";
}

/// Two sequences in one step give each the bits that it has alone.
TEST(SameBits, BesideAnotherSequence) {
  auto m = LoadedModel::convert(kData + "/oracle/int4");
  const std::vector<std::uint32_t> a{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
  const std::vector<std::uint32_t> b{20, 21, 22};
  const std::vector<float> alone = Engine(*m, kernels::best_kernels(), 1, 64, 64).prompt(a, 64);
  ThreadPool pool(2);
  std::vector<std::byte> kv(8 * m->page_bytes());
  Forward forward(m->manifest.spec, m->weights, {kv.data(), m->page_bytes()}, kernels::best_kernels(), pool,
                  64, 64);
  testing::FileExperts experts(m->path, m->manifest, false);
  const std::vector<std::uint32_t> pages_a{3, 1}, pages_b{0};
  std::vector<Sequence> s{{b, pages_b, 0, Logits::kLastRow, {}}, {a, pages_a, 0, Logits::kLastRow, {}}};
  ASSERT_TRUE(forward.run(s, experts, [] { return false; }));
  const auto got = forward.logits(1);
  EXPECT_EQ(std::vector<float>(got.begin(), got.end()), alone);
}

}  // namespace
}  // namespace wisp::compute
