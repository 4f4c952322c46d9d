#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "model_fixture.hpp"
#include "oracle_cases.hpp"
#include "oracle_checks.hpp"

/// KV rows in bf16: attention reads them rounded, those of its own chunk included.
namespace wisp::compute {
namespace {

using kernels::KvFormat;
using testing::Engine;
using testing::ids_of;
using testing::kData;
using testing::LoadedModel;

/// How far logits may be from the f32 oracle's, relative to the largest logit of the position, at the median
/// position. A key is off by up to 2^-9 of itself. (Not at every position: in random models of a few experts
/// a near tie of the router goes the other way now and then, and that position's logits are others.)
constexpr float kTolerance = 0.03f;

class KvInBf16 : public ::testing::TestWithParam<std::string> {};

TEST_P(KvInBf16, LogitsStayNearTheOracles) {
  const std::string folder = kData + "/oracle/" + GetParam();
  const std::vector<std::uint32_t> ids = ids_of(folder);
  const std::vector<float> expected = testing::expected_logits(folder);
  auto m = LoadedModel::convert(folder);
  const std::size_t vocab = m->manifest.spec.vocab;
  Engine engine(*m, kernels::best_kernels(), 1, 128, 128, false, KvFormat::kBf16);
  std::vector<float> off;
  for (std::uint32_t p = 0; p < ids.size(); ++p) {
    const std::vector<float> got = engine.rows(ids, p, 1);
    off.push_back(testing::share_off(got, expected.data() + p * vocab));
  }
  std::sort(off.begin(), off.end());
  const float median = off[off.size() / 2];
  std::printf("  %s: %.2e of the largest logit at the median position, %.2e at the worst\n",
              GetParam().c_str(), static_cast<double>(median), static_cast<double>(off.back()));
  EXPECT_LE(median, kTolerance);
  EXPECT_GT(off.back(), 1e-4f);
}

TEST_P(KvInBf16, SameBitsInAnyChunks) {
  auto m = LoadedModel::convert(kData + "/oracle/" + GetParam());
  testing::expect_same_bits_in_chunks(*m, ids_of(kData + "/oracle/" + GetParam()), KvFormat::kBf16);
}

/// The nearest number of eight significant bits, ties to even, by arithmetic in double. For numbers far from
/// overflow.
float rounded(float x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -125) - 8);
  return static_cast<float>(std::nearbyint(static_cast<double>(x) / unit) * unit);
}

/// Copies of pages with every number rounded.
class RoundedPages {
 public:
  RoundedPages(const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim) {
    const std::size_t n = std::size_t{kernels::kPageTokens} * head_dim;
    const std::uint32_t full = (count + kernels::kPageTokens - 1) / kernels::kPageTokens;
    numbers_.reserve(full * n);
    for (std::uint32_t p = 0; p < full; ++p) {
      table_.push_back(reinterpret_cast<const std::byte*>(numbers_.data() + numbers_.size()));
      const auto* page = reinterpret_cast<const float*>(pages[p]);
      for (std::size_t i = 0; i < n; ++i) numbers_.push_back(rounded(page[i]));
    }
  }
  const std::byte* const* table() const { return table_.data(); }

 private:
  std::vector<float> numbers_;
  std::vector<const std::byte*> table_;
};

/// `ref` for f32 pages, but attention rounds whatever it reads.
kernels::Kernels rounding_table() {
  kernels::Kernels k = kernels::ref_kernels();
  k.attention_scores = [](const kernels::KvRows& keys, const float* q, std::size_t q_stride, std::uint32_t n,
                          float scale, float* scores, std::size_t stride) {
    ASSERT_EQ(keys.format, KvFormat::kF32);
    const RoundedPages pages(keys.pages, keys.count, keys.width);
    kernels::ref_kernels().attention_scores({keys.format, pages.table(), keys.count, keys.width}, q, q_stride,
                                            n, scale, scores, stride);
  };
  k.attention_values = [](const kernels::KvRows& values, const float* probs, std::size_t stride,
                          const std::uint32_t* counts, std::uint32_t n, float* out, std::size_t out_stride) {
    ASSERT_EQ(values.format, KvFormat::kF32);
    const RoundedPages pages(values.pages, values.count, values.width);
    kernels::ref_kernels().attention_values({values.format, pages.table(), values.count, values.width}, probs,
                                            stride, counts, n, out, out_stride);
  };
  return k;
}

/// Rows kept in f32 and rounded whenever attention reads them, by a rounding of the test's own, give the bits
/// of rows kept in bf16: so nothing but rounded rows is read, and each was rounded once.
TEST_P(KvInBf16, IsRoundingOfAllThatAttentionReads) {
  const std::string folder = kData + "/oracle/" + GetParam();
  const std::vector<std::uint32_t> ids = ids_of(folder);
  const auto n = static_cast<std::uint32_t>(ids.size());
  auto m = LoadedModel::convert(folder);
  const kernels::Kernels rounding = rounding_table();
  Engine want(*m, rounding, 1, 128, 128);
  Engine got(*m, kernels::best_kernels(), 1, 128, 128, false, KvFormat::kBf16);
  for (std::uint32_t p = 0; p < n; p += 9) {
    const std::uint32_t count = std::min(9u, n - p);
    ASSERT_EQ(got.rows(ids, p, count), want.rows(ids, p, count)) << "position " << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, KvInBf16, ::testing::ValuesIn(testing::cases()),
                         [](const auto& i) { return i.param; });

}  // namespace
}  // namespace wisp::compute
