#include "wisp/kernels/naive.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "model_fixture.hpp"
#include "oracle_cases.hpp"
#include "oracle_checks.hpp"

/// Latent attention in its naive form: the oracle of the absorbed one, and an option whose rows keep their
/// bits.
namespace wisp::compute {
namespace {

using kernels::KvFormat;
using testing::Engine;
using testing::ids_of;
using testing::kData;
using testing::LoadedModel;

TEST(NaivePositions, AreWholeUnitsOfThePrompt) {
  EXPECT_EQ(kernels::naive_positions(1), 0u);
  EXPECT_EQ(kernels::naive_positions(511), 0u);
  EXPECT_EQ(kernels::naive_positions(512), 512u);
  EXPECT_EQ(kernels::naive_positions(1023), 512u);
  EXPECT_EQ(kernels::naive_positions(1024), 1024u);
}

std::vector<std::uint32_t> some_ids(std::uint32_t n, std::uint32_t vocab) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < n; ++i) ids.push_back((i * 2654435761u >> 7) % vocab);
  return ids;
}

class Naive : public ::testing::TestWithParam<std::string> {
 protected:
  std::string folder() const { return kData + "/oracle/" + GetParam(); }
};

/// Hugging Face's own form, at every position.
TEST_P(Naive, GivesTheOraclesLogits) {
  const std::vector<std::uint32_t> ids = ids_of(folder());
  const std::vector<float> expected = testing::expected_logits(folder());
  auto m = LoadedModel::convert(folder());
  Engine engine(*m, kernels::best_kernels(), 1, 128, 128);
  engine.naive_until(128);
  for (std::uint32_t p = 0; p < ids.size(); ++p)
    ASSERT_LE(
        testing::share_off(engine.rows(ids, p, 1), expected.data() + std::size_t{p} * m->manifest.spec.vocab),
        1e-4f)
        << "position " << p;
}

/// Logits of the last row, relative to the largest of them.
TEST_P(Naive, EqualsAbsorbed) {
  auto m = LoadedModel::convert(folder());
  for (const std::uint32_t rows : {1u, 2u, 64u, 300u}) {
    const std::vector<std::uint32_t> ids = some_ids(rows, m->manifest.spec.vocab);
    const std::vector<float> absorbed = Engine(*m, kernels::best_kernels(), 1, 300, 320).prompt(ids, 300);
    const std::vector<float> naive =
        Engine(*m, kernels::best_kernels(), 1, 300, 320).naive_until(rows).prompt(ids, 300);
    const float d = testing::share_off(naive, absorbed.data());
    std::printf("  %s, %u rows: %.1e\n", GetParam().c_str(), rows, static_cast<double>(d));
    EXPECT_LE(d, 1e-5f) << rows << " rows";
    if (rows == 300) {
      EXPECT_GT(d, 0.0f) << "the same bits: was it naive at all?";
    }
  }
}

/// Prompts of which the first part is naive, in both formats of KV.
TEST_P(Naive, SameBitsInAnyChunks) {
  auto m = LoadedModel::convert(folder());
  constexpr std::uint32_t kRows = 300, kUntil = 277;
  const std::vector<std::uint32_t> ids = some_ids(kRows, m->manifest.spec.vocab);
  for (const KvFormat kv : {KvFormat::kF32, KvFormat::kBf16}) {
    Engine plain(*m, kernels::ref_kernels(), 1, kRows, 320, false, kv);
    const std::vector<float> want = plain.naive_until(kUntil).prompt(ids, kRows);
    for (const std::uint32_t chunk : {1u, 7u, 64u, kRows}) {
      Engine engine(*m, kernels::best_kernels(), 2, kRows, 320, chunk == 7, kv);
      EXPECT_EQ(engine.naive_until(kUntil).prompt(ids, chunk), want)
          << name_of(kv) << ", chunks of " << chunk;
      EXPECT_TRUE(std::equal(engine.kv().begin(), engine.kv().end(), plain.kv().begin(), plain.kv().end()))
          << name_of(kv) << ", chunks of " << chunk << ": KV";
    }
  }
}

/// Every folder of a model with latent attention.
std::vector<std::string> latent_cases() {
  std::vector<std::string> names;
  for (const std::string& name : testing::cases()) {
    std::ifstream in(kData + "/oracle/" + name + "/config.json");
    if (nlohmann::json::parse(in).contains("kv_lora_rank")) names.push_back(name);
  }
  return names;
}
INSTANTIATE_TEST_SUITE_P(Cases, Naive, ::testing::ValuesIn(latent_cases()),
                         [](const auto& i) { return i.param; });

/// Naive and absorbed rows of two sequences in one step: each has the bits that it has alone.
TEST(NaiveRows, BesideAnotherSequence) {
  auto m = LoadedModel::convert(kData + "/oracle/deepseek_v3_published");
  const std::vector<std::uint32_t> a = some_ids(40, 160), b = some_ids(21, 160);
  const auto alone = [&](const std::vector<std::uint32_t>& ids, std::uint32_t until) {
    return Engine(*m, kernels::best_kernels(), 1, 64, 64).naive_until(until).prompt(ids, 64);
  };
  const std::vector<float> want_a = alone(a, 33), want_b = alone(b, 16);
  ThreadPool pool(2);
  std::vector<std::byte> kv(8 * m->page_bytes());
  Forward forward(m->manifest.spec, m->weights, {kv.data(), m->page_bytes()}, kernels::best_kernels(), pool,
                  64, 64);
  testing::FileExperts experts(m->path, m->manifest, false);
  const std::vector<std::uint32_t> pages_a{3, 1, 6}, pages_b{0, 5};
  std::vector<Sequence> s{{b, pages_b, 0, Logits::kLastRow, {}, 16},
                          {a, pages_a, 0, Logits::kLastRow, {}, 33}};
  ASSERT_TRUE(forward.run(s, experts, [] { return false; }));
  const auto got_b = forward.logits(0), got_a = forward.logits(1);
  EXPECT_EQ(std::vector<float>(got_a.begin(), got_a.end()), want_a);
  EXPECT_EQ(std::vector<float>(got_b.begin(), got_b.end()), want_b);
}

}  // namespace
}  // namespace wisp::compute
