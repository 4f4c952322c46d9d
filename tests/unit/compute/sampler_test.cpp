#include "services/compute/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace wisp::compute {
namespace {

shm::RequestParams params(float temperature) {
  shm::RequestParams p;
  p.temperature = temperature;
  p.seed = 7;
  return p;
}

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  Sampler s;
  const std::vector<float> logits{1.0f, 3.0f, 3.0f, -1.0f};
  EXPECT_EQ(s.draw(logits, params(0.0f), 5).value(), 1u);
}

TEST(Sampler, RefusesWhatIsNotANumber) {
  Sampler s;
  const std::vector<float> logits{1.0f, std::numeric_limits<float>::quiet_NaN()};
  ASSERT_FALSE(s.draw(logits, params(0.0f), 5).ok());
  ASSERT_FALSE(s.draw(logits, params(1.0f), 5).ok());
}

/// Then e^(logit - best) says nothing: the best has all the mass, the lowest id of equals.
TEST(Sampler, TakesTheBestWhereItIsInfinite) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  Sampler s;
  EXPECT_EQ(s.draw(std::vector{1.0f, kInfinite, 2.0f, kInfinite}, params(1.0f), 5).value(), 1u);
  EXPECT_EQ(s.draw(std::vector{-kInfinite, -kInfinite}, params(1.0f), 5).value(), 0u);
}

TEST(Sampler, SameSeedAndPositionSameToken) {
  Sampler a, b;
  std::vector<float> logits(100);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  for (std::uint32_t pos = 0; pos < 50; ++pos)
    EXPECT_EQ(a.draw(logits, params(1.0f), pos).value(), b.draw(logits, params(1.0f), pos).value());
}

/// Frequencies follow the softmax: chi-square over 20,000 positions.
TEST(Sampler, FollowsTheDistribution) {
  Sampler s;
  const std::vector<float> logits{0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
  const float temperature = 0.8f;
  double total = 0.0;
  std::vector<double> p;
  for (const float l : logits) p.push_back(std::exp(l / temperature)), total += p.back();
  std::map<std::uint32_t, int> count;
  const int n = 20000;
  for (int i = 0; i < n; ++i)
    ++count[s.draw(logits, params(temperature), static_cast<std::uint32_t>(i)).value()];
  double chi = 0.0;
  for (std::uint32_t i = 0; i < p.size(); ++i) {
    const double e = n * p[i] / total;
    chi += (count[i] - e) * (count[i] - e) / e;
  }
  EXPECT_LT(chi, 18.5);  // 4 degrees of freedom, p = 0.001
}

TEST(Sampler, FiltersKeepWhatTheySay) {
  Sampler s;
  const std::vector<float> logits{0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
  auto top_k = params(5.0f);
  top_k.top_k = 2;
  auto top_p = params(1.0f);
  top_p.top_p = 0.5f;
  auto min_p = params(5.0f);
  min_p.min_p = 0.9f;
  for (std::uint32_t pos = 0; pos < 500; ++pos) {
    const std::uint32_t t = s.draw(logits, top_k, pos).value();
    EXPECT_TRUE(t == 2 || t == 1);
    EXPECT_EQ(s.draw(logits, top_p, pos).value(), 2u);  // its mass alone is 0.55
    EXPECT_EQ(s.draw(logits, min_p, pos).value() == 3u, false);
  }
}

/// The token is where a full sort and sums in its order put it, however far down the ranks the draw goes.
TEST(Sampler, RanksAsAFullSortDoes) {
  Sampler s;
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i)  // in quarters, so that many are equal
    logits[i] = std::floor(static_cast<float>(8.0 * std::sin(1.7 * static_cast<double>(i)))) / 4.0f;
  std::vector<std::uint32_t> sorted(logits.size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  std::stable_sort(sorted.begin(), sorted.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  for (const std::uint32_t top_k : {0u, 300u}) {
    for (const float top_p : {1.0f, 0.7f}) {
      auto p = params(2.0f);
      p.top_k = top_k;
      p.top_p = top_p;
      std::vector<double> up_to;  // mass of the ranks before and at each
      double total = 0.0;
      for (std::size_t i = 0; i < (top_k == 0 ? sorted.size() : top_k); ++i)
        up_to.push_back(total += std::exp(static_cast<double>(logits[sorted[i]]) / 2.0));
      const auto cut = std::find_if(up_to.begin(), up_to.end(), [&](double m) { return m >= top_p * total; });
      if (top_p < 1.0f) up_to.erase(cut + 1, up_to.end());
      std::uint32_t deepest = 0;
      for (std::uint32_t pos = 0; pos < 300; ++pos) {
        const double u = philox_uniform(p.seed, pos) * up_to.back();
        const auto at = std::upper_bound(up_to.begin(), up_to.end(), u) - up_to.begin();
        const auto drawn = s.draw(logits, p, pos).value();
        const auto rank = std::find(sorted.begin(), sorted.end(), drawn) - sorted.begin();
        EXPECT_LE(std::abs(rank - at), 1) << pos;  // masses are rounded to f32 there
        if (rank != at) {
          EXPECT_NEAR(u, up_to[static_cast<std::size_t>(std::min(rank, at))], 1e-6 * total);
        }
        deepest = std::max(deepest, static_cast<std::uint32_t>(rank));
      }
      EXPECT_GT(deepest, top_k == 0 ? 1000u : 128u);
    }
  }
}

/// Known answers of Random123's Philox4x32-10 for a zero counter and key: 6627e8d5 e169c58d bc57ac4c
/// 9b00dbd8.
TEST(Philox, KnownAnswer) {
  const std::uint64_t bits = (std::uint64_t{0x6627e8d5u} << 32 | 0xe169c58du) >> 11;
  EXPECT_EQ(philox_uniform(0, 0), static_cast<double>(bits) * 0x1.0p-53);
}

}  // namespace
}  // namespace wisp::compute
