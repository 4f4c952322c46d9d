#include <limits>

#include "support.hpp"

namespace wisp::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Distance from the exact value in units of the last place of the float next to it.
double ulps(float got, double want) {
  const int exponent = std::max(std::ilogb(want), -126);
  return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, exponent - 23);
}

TEST(Exp, IsWithinTwoUlpsEverywhere) {
  double worst = 0;
  // Every 997th float from -104 to 88.7, by bits: all exponents, subnormal results included.
  const auto sweep = [&](float from, float to) {
    for (auto bits = std::bit_cast<std::uint32_t>(from); bits <= std::bit_cast<std::uint32_t>(to);
         bits += 997) {
      const auto x = std::bit_cast<float>(bits);
      worst = std::max(worst, ulps(canonical_exp(x), std::exp(static_cast<double>(x))));
    }
  };
  sweep(0.0f, 88.72f);
  sweep(-0.0f, -104.0f);
  EXPECT_LE(worst, 1.1);  // CANON.md: 1.01
}

TEST(Exp, LimitsAreThoseOfIeee) {
  EXPECT_EQ(canonical_exp(0.0f), 1.0f);
  EXPECT_EQ(canonical_exp(-0.0f), 1.0f);
  EXPECT_EQ(canonical_exp(kInf), kInf);
  EXPECT_EQ(canonical_exp(88.73f), kInf);
  EXPECT_EQ(canonical_exp(3e38f), kInf);
  EXPECT_LT(canonical_exp(88.72f), kInf);
  EXPECT_TRUE(same(canonical_exp(-kInf), 0.0f));
  EXPECT_TRUE(same(canonical_exp(-104.0f), 0.0f));
  EXPECT_TRUE(same(canonical_exp(-3e38f), 0.0f));
  EXPECT_EQ(canonical_exp(-103.5f), 0x1p-149f);
  EXPECT_TRUE(std::isnan(canonical_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Exp, IsMonotoneWhereItMeetsTheNextPowerOfTwo) {
  for (int n = -140; n < 127; ++n) {
    float x = static_cast<float>((n + 0.5) * std::log(2.0));
    for (int i = 0; i < 50; ++i) x = std::nextafter(x, -kInf);
    for (int i = 0; i < 100; ++i) {
      const float next = std::nextafter(x, kInf);
      EXPECT_LE(canonical_exp(x), canonical_exp(next)) << std::hexfloat << x;
      x = next;
    }
  }
}

TEST(Exp, TheBitsStandFast) {
  // A change here is a new kCanonVersion.
  std::uint32_t hash = 2166136261u;
  for (float x = -104.0f; x < 89.0f; x += 0.01f) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(canonical_exp(x))) * 16777619u;
  }
  EXPECT_EQ(hash, 2346089449u);
}

}  // namespace
}  // namespace wisp::kernels::test
