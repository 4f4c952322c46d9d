#include <limits>

#include "support.hpp"

namespace wisp::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<std::uint32_t> lengths() {
  std::vector<std::uint32_t> n;
  for (std::uint32_t i = 1; i <= 70; ++i) n.push_back(i);
  for (const std::uint32_t i : {127u, 128u, 129u, 1000u, 2048u, 4099u}) n.push_back(i);
  return n;
}

TEST(Sum, FollowsTheLanesAndTheTree) {
  Random random(6);
  const std::vector<float> x = numbers(random, 37);
  float lane[16];
  for (std::size_t l = 0; l < 16; ++l) {
    lane[l] = 0.0f + x[l];
    lane[l] = lane[l] + x[l + 16];
    if (l + 32 < 37) lane[l] = lane[l] + x[l + 32];
  }
  const auto eight = [&](std::size_t l) { return lane[l] + lane[l + 8]; };
  const auto four = [&](std::size_t l) { return eight(l) + eight(l + 4); };
  EXPECT_TRUE(same(canonical_sum(x.data(), 37), (four(0) + four(2)) + (four(1) + four(3))));
  EXPECT_TRUE(same(canonical_sum(x.data(), 0), 0.0f));
}

TEST(RmsNorm, EveryTableGivesTheBitsOfRef) {
  Random random(run_seed());
  for (const std::uint32_t n : lengths()) {
    const std::vector<float> x = numbers(random, n);
    const std::vector<float> weight = numbers(random, n);
    std::vector<float> want(n + 1, -7.0f);
    ref_kernels().rms_norm(x.data(), weight.data(), 1e-6f, n, want.data());
    EXPECT_EQ(want[n], -7.0f);
    for (const Kernels* k : other_tables()) {
      std::vector<float> got(n + 1, -7.0f);
      k->rms_norm(x.data(), weight.data(), 1e-6f, n, got.data());
      EXPECT_TRUE(same_bits(want, got)) << n;
    }
  }
}

TEST(RmsNorm, IsCloseToTheExactValueAndMayWorkInPlace) {
  Random random(8);
  const std::uint32_t n = 2048;
  std::vector<float> x = numbers(random, n);
  const std::vector<float> before = x;
  const std::vector<float> weight = numbers(random, n);
  best_kernels().rms_norm(x.data(), weight.data(), 1e-5f, n, x.data());
  double squares = 0;
  for (const float v : before) squares += static_cast<double>(v) * static_cast<double>(v);
  const double r = 1.0 / std::sqrt(squares / n + 1e-5);
  for (std::uint32_t i = 0; i < n; ++i) {
    const double want = static_cast<double>(weight[i]) * static_cast<double>(before[i]) * r;
    EXPECT_NEAR(static_cast<double>(x[i]), want, std::abs(want) * 1e-5);
  }
}

TEST(Softmax, EveryTableGivesTheBitsOfRef) {
  Random random(run_seed());
  for (const std::uint32_t n : lengths()) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> x = numbers(random, n);
      if (kind == 1) x[random() % n] = -kInf;
      if (kind == 2) x[random() % n] = std::numeric_limits<float>::quiet_NaN();
      if (kind == 3) x[random() % n] = kInf;
      x.push_back(-7.0f);
      std::vector<float> want = x;
      ref_kernels().softmax(want.data(), n);
      EXPECT_EQ(want[n], -7.0f);
      for (const Kernels* k : other_tables()) {
        std::vector<float> got = x;
        k->softmax(got.data(), n);
        EXPECT_TRUE(same_bits(want, got)) << n << ", kind " << kind;
      }
    }
  }
}

TEST(Softmax, AllNegativeNumbersFindTheirMaximum) {
  // A lane beyond n that counted as zero would be the maximum here.
  for (std::uint32_t n = 1; n <= 20; ++n) {
    std::vector<float> x(n, -300.0f);
    best_kernels().softmax(x.data(), n);
    EXPECT_EQ(x[0], 1.0f / static_cast<float>(n));
  }
}

TEST(Softmax, IsCloseToTheExactValue) {
  Random random(10);
  std::normal_distribution<float> normal(0.0f, 5.0f);
  std::vector<float> x(1000);
  for (float& v : x) v = normal(random);
  const std::vector<float> before = x;
  best_kernels().softmax(x.data(), 1000);
  double sum = 0;
  for (const float v : before) sum += std::exp(static_cast<double>(v));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(before[i])) / sum;
    EXPECT_NEAR(static_cast<double>(x[i]), want, want * 3e-6);
  }
}

TEST(Softmax, MaskedEntriesBecomeZeroAndNanSpreads) {
  float x[3] = {1.0f, -kInf, 1.0f};
  best_kernels().softmax(x, 3);
  EXPECT_EQ(x[0], 0.5f);
  EXPECT_TRUE(same(x[1], 0.0f));
  float y[3] = {1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f};
  best_kernels().softmax(y, 3);
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
  best_kernels().softmax(y, 0);
}

}  // namespace
}  // namespace wisp::kernels::test
