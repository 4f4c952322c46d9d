#include "services/compute/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

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

/// Known answers of Random123's Philox4x32-10 for a zero counter and key: 6627e8d5 e169c58d bc57ac4c
/// 9b00dbd8.
TEST(Philox, KnownAnswer) {
  const std::uint64_t bits = (std::uint64_t{0x6627e8d5u} << 32 | 0xe169c58du) >> 11;
  EXPECT_EQ(philox_uniform(0, 0), static_cast<double>(bits) * 0x1.0p-53);
}

}  // namespace
}  // namespace wisp::compute
