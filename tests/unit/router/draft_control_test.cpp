#include "services/router/draft_control.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

/// The controller against a made machine: steps of n rows take what a curve says, drafts stand by chance.
namespace wisp::router {
namespace {

constexpr double kPlainNs = 10e6;

struct Machine {
  double row = 0.1;     ///< of a plain step, for each further row
  double accept = 0.6;  ///< of each draft
  double latency_ns = 0;
};

struct Outcome {
  double ns = 0, tokens = 0, drafted = 0, steps = 0;
  double rate() const { return tokens / ns; }
};

/// One sequence, `tokens` long, with drafts always at hand.
Outcome run(DraftControl& c, const Machine& m, std::uint32_t tokens, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> u(0, 1);
  Outcome o;
  while (o.tokens < tokens) {
    const DraftControl::Offer offer{0, DraftSource::kModel, 0, ring::kMostDrafted};
    const std::uint32_t k = c.choose(1, {&offer, 1}, 14)[0];
    std::uint32_t stood = 0;
    while (stood < k && u(random) < m.accept) ++stood;
    for (std::uint32_t i = 0; i <= std::min(stood, k - 1) && k > 0; ++i)
      c.judge(0, DraftSource::kModel, i, i < stood);
    // What is not tried is judged by the answer all the same.
    if (k == 0)
      for (std::uint32_t i = 0; i < 3; ++i) {
        const bool stands = u(random) < m.accept;
        c.judge(0, DraftSource::kModel, i, stands);
        if (!stands) break;
      }
    const double noise = 0.95 + 0.1 * u(random);
    const double ns = kPlainNs * (1 + m.row * k) * noise;
    c.step(1, k, static_cast<std::uint64_t>(ns), 0, 1 + stood);
    o.ns += ns;
    o.tokens += 1 + stood;
    o.drafted += k;
    o.steps += 1;
  }
  return o;
}

double plain_rate() {
  return 1 / kPlainNs;
}

TEST(DraftControl, LosesNextToNothingWhereNothingIsToBeWon) {
  for (const double accept : {0.0, 0.3, 0.6})
    for (const double row : {0.8, 1.0}) {
      DraftControl c(4, 0);
      c.begin(0);
      const Outcome o = run(c, {row, accept, 0}, 1000, 7);
      EXPECT_GT(o.rate(), 0.98 * plain_rate()) << accept << " " << row;
    }
}

TEST(DraftControl, TakesMostOfWhatIsToBeWon) {
  for (const double accept : {0.6, 0.8, 0.95})
    for (const double row : {0.05, 0.2}) {
      DraftControl c(4, 0);
      c.begin(0);
      const Outcome o = run(c, {row, accept, 0}, 2000, 11);
      double best = 1;
      for (int k = 1; k <= 7; ++k)
        best = std::max(best, (1 - std::pow(accept, k + 1)) / (1 - accept) / (1 + row * k));
      EXPECT_GT(o.rate(), (1 + 0.7 * (best - 1)) * plain_rate()) << accept << " " << row << " best " << best;
    }
}

TEST(DraftControl, StopsWhenALuckOfLongStandingEnds) {
  DraftControl c(4, 0);
  c.begin(0);
  run(c, {0.3, 0.95, 0}, 500, 3);
  const Outcome o = run(c, {0.3, 0.0, 0}, 500, 5);
  EXPECT_GT(o.rate(), 0.97 * plain_rate());
  EXPECT_LT(o.drafted, 60);
}

TEST(DraftControl, FindsOutAgainWhenTimesChange) {
  DraftControl c(4, 0);
  c.begin(0);
  run(c, {1.0, 0.8, 0}, 500, 3);  // a drive that binds
  const Outcome o = run(c, {0.05, 0.8, 0}, 1500, 5);
  EXPECT_GT(o.rate(), 1.4 * plain_rate());
}

TEST(DraftControl, WaitsOnlyForWhatComesSoonerThanItSaves) {
  for (const double share : {0.02, 0.9}) {
    DraftControl c(4, 0);
    c.begin(0);
    run(c, {0.05, 0.8, 0}, 300, 3);
    for (int i = 0; i < 40; ++i)
      c.answered(DraftSource::kModel, static_cast<std::uint64_t>(share * kPlainNs * 3), 1, 3);
    const DraftControl::Wish w = c.wish(0, DraftSource::kModel);
    EXPECT_EQ(w.count > 0, share < 0.5) << share;
    EXPECT_EQ(w.patience_ns > 0, share < 0.5);
  }
}

TEST(DraftControl, AFixedNumberIsTriedWhateverItCosts) {
  DraftControl c(4, 3);
  c.begin(0);
  const DraftControl::Offer offers[]{{0, DraftSource::kModel, 0, 7}, {1, DraftSource::kShortMatch, 4, 2}};
  const auto k = c.choose(2, offers, 14);
  EXPECT_EQ(k[0], 3u);
  EXPECT_EQ(k[1], 2u);
  EXPECT_EQ(c.choose(2, offers, 4)[1], 1u);
}

}  // namespace
}  // namespace wisp::router
