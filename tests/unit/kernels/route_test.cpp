#include <algorithm>
#include <cmath>
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

/// The published geometries of sigmoid routers, against the definition written anew in double with sorted
/// lists.
TEST(Route, SigmoidFollowsItsDefinition) {
  struct Geometry {
    std::uint32_t experts, top_k, groups, kept;
    bool renormalise;
    double scale;
  };
  Random random(29);
  std::normal_distribution<float> normal;
  for (const Geometry& g : {Geometry{256, 8, 8, 4, true, 2.5}, Geometry{384, 8, 1, 1, true, 2.827},
                            Geometry{160, 8, 1, 1, true, 2.5}, Geometry{64, 6, 1, 1, false, 1.8},
                            Geometry{64, 6, 4, 2, false, 1.0}, Geometry{16, 4, 8, 2, true, 1.0}}) {
    const std::uint32_t size = g.experts / g.groups;
    int compared = 0;
    for (int round = 0; round < 40; ++round) {
      std::vector<float> logits(g.experts), selection(g.experts), scratch(2 * std::size_t{g.experts});
      for (float& v : logits) v = 2.0f * normal(random);
      for (float& v : selection) v = 0.3f * normal(random) - (round % 2 == 0 ? 0.0f : 1.0f);
      std::vector<double> score(g.experts), choice(g.experts);
      for (std::uint32_t e = 0; e < g.experts; ++e) {
        score[e] = 1.0 / (1.0 + std::exp(-static_cast<double>(logits[e])));
        choice[e] = score[e] + static_cast<double>(selection[e]);
      }
      const auto falling = [](const std::vector<double>& by, std::vector<std::uint32_t> ids) {
        std::sort(ids.begin(), ids.end(), [&](std::uint32_t a, std::uint32_t b) { return by[a] > by[b]; });
        return ids;
      };
      std::vector<double> worth(g.groups);
      std::vector<std::uint32_t> all_groups(g.groups), open;
      for (std::uint32_t i = 0; i < g.groups; ++i) {
        all_groups[i] = i;
        std::vector<double> members(choice.begin() + i * size, choice.begin() + (i + 1) * size);
        std::sort(members.rbegin(), members.rend());
        worth[i] = members[0] + members[1];
      }
      const auto groups = falling(worth, all_groups);
      double margin = g.groups > g.kept ? worth[groups[g.kept - 1]] - worth[groups[g.kept]] : 1.0;
      for (std::uint32_t i = 0; i < g.kept; ++i)
        for (std::uint32_t e = 0; e < size; ++e) open.push_back(groups[i] * size + e);
      open = falling(choice, open);
      for (std::uint32_t i = 0; i < g.top_k && i + 1 < open.size(); ++i)
        margin = std::min(margin, choice[open[i]] - choice[open[i + 1]]);
      if (margin < 1e-5) continue;  // rounding may choose another one
      ++compared;
      double sum = 0.0;
      for (std::uint32_t i = 0; i < g.top_k; ++i) sum += score[open[i]];
      std::vector<std::uint32_t> ids(g.top_k);
      std::vector<float> weights(g.top_k);
      kernels::route({RouteKind::kSigmoidTopK, g.experts, g.top_k, g.renormalise, g.groups, g.kept,
                      static_cast<float>(g.scale)},
                     logits.data(), selection.data(), scratch.data(), ids.data(), weights.data(),
                     best_kernels());
      open.resize(g.top_k);
      ASSERT_EQ(ids, open) << g.experts << " in " << g.groups << " groups";
      for (std::uint32_t i = 0; i < g.top_k; ++i)
        EXPECT_NEAR(static_cast<double>(weights[i]), g.scale * score[open[i]] / (g.renormalise ? sum : 1.0),
                    1e-6);
    }
    EXPECT_GT(compared, 30);
  }
}

/// Softmax of the chosen logits alone: what all the others are does not matter.
TEST(Route, ChosenLogitsAloneAreWeighed) {
  std::vector<float> logits(128, 1.0f);
  logits[77] = 3.0f;
  logits[5] = 2.5f;
  logits[127] = 2.0f;
  logits[9] = 1.5f;
  std::vector<float> scratch(256), weights(4);
  std::vector<std::uint32_t> ids(4);
  kernels::route({RouteKind::kTopKSoftmax, 128, 4, true}, logits.data(), nullptr, scratch.data(), ids.data(),
                 weights.data(), best_kernels());
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{77, 5, 127, 9}));
  const double sum = 1.0 + std::exp(-0.5) + std::exp(-1.0) + std::exp(-1.5);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(static_cast<double>(weights[static_cast<std::size_t>(i)]), std::exp(-0.5 * i) / sum, 1e-6);
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
