#include <limits>
#include <set>

#include "support.hpp"

namespace wisp::kernels::test {
namespace {

struct Route {
  std::vector<std::uint32_t> ids;
  std::vector<float> weights;
};

Route route(const std::vector<float>& logits, std::uint32_t top_k, bool renormalise, const Kernels& k) {
  Route r{std::vector<std::uint32_t>(top_k), std::vector<float>(top_k)};
  std::vector<float> scratch(2 * logits.size());
  const RouteRule rule{RouteKind::kSoftmaxTopK, static_cast<std::uint32_t>(logits.size()), top_k,
                       renormalise};
  kernels::route(rule, logits.data(), nullptr, scratch.data(), r.ids.data(), r.weights.data(), k);
  return r;
}

TEST(Route, RanksByWeightAndTiesByTheLowestId) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -5.0f, 2.0f};
  EXPECT_EQ(route(logits, 4, true, best_kernels()).ids, (std::vector<std::uint32_t>{1, 3, 2, 5}));
  EXPECT_EQ(route(std::vector<float>(64, 0.25f), 3, true, best_kernels()).ids,
            (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST(Route, WeightsAreProbabilitiesOrTheirShares) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 0.5f};
  std::vector<float> p = logits;
  ref_kernels().softmax(p.data(), 4);
  const Route plain = route(logits, 3, false, ref_kernels());
  EXPECT_TRUE(same_bits(std::vector<float>{p[1], p[2], p[0]}, plain.weights));
  const float sum = (p[1] + p[2]) + p[0];
  const Route shares = route(logits, 3, true, ref_kernels());
  EXPECT_TRUE(same_bits(std::vector<float>{p[1] / sum, p[2] / sum, p[0] / sum}, shares.weights));
}

TEST(Route, EveryTableChoosesAlike) {
  Random random(13);
  for (int i = 0; i < 50; ++i) {
    std::vector<float> logits = numbers(random, 1 + random() % 130);
    for (float& v : logits) v = std::round(v * 2.0f) / 2.0f;  // many ties
    const std::uint32_t top_k =
        1 + static_cast<std::uint32_t>(random() % std::min<std::size_t>(logits.size(), 8));
    const Route want = route(logits, top_k, i % 2 == 0, ref_kernels());
    for (std::size_t r = 1; r < top_k; ++r) {
      EXPECT_GE(want.weights[r - 1], want.weights[r]);
      if (want.weights[r - 1] == want.weights[r]) {
        EXPECT_LT(want.ids[r - 1], want.ids[r]);
      }
    }
    for (const Kernels* k : other_tables()) {
      const Route got = route(logits, top_k, i % 2 == 0, *k);
      EXPECT_EQ(want.ids, got.ids);
      EXPECT_TRUE(same_bits(want.weights, got.weights));
    }
  }
}

TEST(Route, BrokenLogitsStillGiveDistinctIds) {
  std::vector<float> logits(16, 0.5f);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  const Route r = route(logits, 8, true, best_kernels());
  EXPECT_EQ(std::set<std::uint32_t>(r.ids.begin(), r.ids.end()).size(), 8u);
  EXPECT_TRUE(std::isnan(r.weights[0]));
}

TEST(Route, UnderflowedProbabilitiesAreStillChosenOnce) {
  const Route r = route({0.0f, -500.0f, -500.0f, -500.0f}, 4, true, best_kernels());
  EXPECT_EQ(r.ids, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(same_bits(std::vector<float>{1.0f, 0.0f, 0.0f, 0.0f}, r.weights));
}

}  // namespace
}  // namespace wisp::kernels::test
