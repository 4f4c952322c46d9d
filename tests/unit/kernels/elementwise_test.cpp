#include <limits>

#include "support.hpp"

namespace wisp::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// n numbers, among them the special ones.
std::vector<float> with_specials(Random& random, std::size_t n) {
  constexpr float kSpecials[] = {0.0f,       -0.0f, kInf,   -kInf,   kNan, 0x1p-149f,
                                 -0x1p-130f, 88.8f, -88.8f, -104.5f, 3e38f};
  std::vector<float> x = numbers(random, n);
  for (float& v : x) {
    if (random() % 4 == 0) v = kSpecials[random() % std::size(kSpecials)];
  }
  return x;
}

template <class Op>
void compare(const char* what, Op op) {
  Random random(run_seed());
  for (std::size_t n = 0; n <= 70; ++n) {
    const std::vector<float> a = with_specials(random, n);
    const std::vector<float> b = with_specials(random, n + 1);
    std::vector<float> want = a;
    want.push_back(-7.0f);
    std::vector<float> got = want;
    op(ref_kernels(), want, b, n);
    EXPECT_EQ(want[n], -7.0f);
    for (const Kernels* k : other_tables()) {
      std::vector<float> y = got;
      op(*k, y, b, n);
      EXPECT_TRUE(same_bits(want, y)) << what << ", n " << n;
    }
  }
}

using Numbers = std::vector<float>;

TEST(Elementwise, EveryTableGivesTheBitsOfRef) {
  compare("silu_mul", [](const Kernels& k, Numbers& a, const Numbers& b, std::size_t n) {
    k.silu_mul(a.data(), b.data(), n);
  });
  compare("add", [](const Kernels& k, Numbers& a, const Numbers& b, std::size_t n) {
    k.add(a.data(), b.data(), n);
  });
  for (const bool first : {true, false}) {
    compare("accumulate", [first](const Kernels& k, Numbers& a, const Numbers& b, std::size_t n) {
      k.accumulate(0.3f, b.data(), a.data(), n, first);
    });
  }
}

TEST(Elementwise, ExpGivesTheBitsOfRefAllOverItsRange) {
  Random random(run_seed());
  std::uniform_real_distribution<float> range(-106.0f, 106.0f);
  std::vector<float> x(200'000);
  for (float& v : x) v = range(random);
  // A second step of the reduction that is not fused shows in one of a million numbers; in these it does.
  constexpr float kHard[] = {-0x1.8f3252p+5f, -0x1.2324e6p+6f, -0x1.8f354p+5f, -0x1.8f344ep+5f,
                             -0x1.01d9dap+6f};
  std::ranges::copy(kHard, x.begin());
  const std::vector<float> ones(x.size(), 1.0f);
  std::vector<float> want = x;
  ref_kernels().silu_mul(want.data(), ones.data(), want.size());
  for (const Kernels* k : other_tables(&Kernels::silu_mul)) {
    std::vector<float> got = x;
    k->silu_mul(got.data(), ones.data(), got.size());
    EXPECT_TRUE(same_bits(want, got)) << name_of(k->isa);
  }
}

TEST(Elementwise, FirstAccumulateIgnoresWhatWasThere) {
  float acc[3] = {kNan, 5.0f, kInf};
  const float y[3] = {1.0f, -2.0f, 3.0f};
  best_kernels().accumulate(2.0f, y, acc, 3, true);
  EXPECT_EQ(acc[0], 2.0f);
  EXPECT_EQ(acc[1], -4.0f);
  EXPECT_EQ(acc[2], 6.0f);
}

TEST(Elementwise, AccumulateRoundsOnce) {
  float acc[1] = {-1.0f};
  const float y[1] = {1.0f + 0x1p-23f};
  ref_kernels().accumulate(1.0f + 0x1p-23f, y, acc, 1, false);
  EXPECT_EQ(acc[0], 0x1p-22f + 0x1p-46f);
}

TEST(Silu, IsCloseToTheExactValue) {
  for (float x = -80.0f; x < 80.0f; x += 0.0371f) {
    const double want = static_cast<double>(x) / (1.0 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(static_cast<double>(canonical_silu(x)), want, std::abs(want) * 3e-7) << x;
  }
  EXPECT_TRUE(same(canonical_silu(-0.0f), -0.0f));
  EXPECT_EQ(canonical_silu(kInf), kInf);
  EXPECT_TRUE(std::isnan(canonical_silu(kNan)));
}

TEST(Rope, RotatesHalvesAndPairs) {
  const float cosine[4] = {1.0f, 1.0f, 0.6f, 0.28f};
  const float sine[4] = {0.0f, 0.0f, 0.8f, 0.96f};
  const RopeTable table{.width = 4, .cos = cosine, .sin = sine};
  const auto pair = [](float a, float b, float c, float s) {
    const float ac = a * c;
    const float bs = b * s;
    const float bc = b * c;
    const float as = a * s;
    return std::pair(ac - bs, bc + as);
  };
  float halves[5] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f};
  apply_rope(halves, table, 1, false);
  EXPECT_EQ(std::pair(halves[0], halves[2]), pair(1.0f, 3.0f, 0.6f, 0.8f));
  EXPECT_EQ(std::pair(halves[1], halves[3]), pair(2.0f, 4.0f, 0.28f, 0.96f));
  EXPECT_EQ(halves[4], 5.0f);  // beyond the rotated width
  float pairs[5] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f};
  apply_rope(pairs, table, 1, true);
  EXPECT_EQ(std::pair(pairs[0], pairs[1]), pair(1.0f, 2.0f, 0.6f, 0.8f));
  EXPECT_EQ(std::pair(pairs[2], pairs[3]), pair(3.0f, 4.0f, 0.28f, 0.96f));
  EXPECT_EQ(pairs[4], 5.0f);
  float still[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  apply_rope(still, table, 0, false);
  EXPECT_EQ(still[3], 4.0f);
}

}  // namespace
}  // namespace wisp::kernels::test
