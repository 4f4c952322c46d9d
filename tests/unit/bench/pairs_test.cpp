#include "services/bench/pairs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace wisp::bench {
namespace {

TEST(Pairs, QuartilesOfKnownLists) {
  const Quartiles odd = quartiles_of({5, 1, 4, 2, 3});
  EXPECT_EQ(odd.low, 2);
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.high, 4);
  const Quartiles even = quartiles_of({1, 2, 3, 4});
  EXPECT_EQ(even.low, 1.75);
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.high, 3.25);
  const Quartiles one = quartiles_of({7});
  EXPECT_EQ(one.low, 7);
  EXPECT_EQ(one.high, 7);
  EXPECT_EQ(quartiles_of({}).median, 0);
}

/// A quarter of the numbers lies at or below each bound, whatever their order.
TEST(Pairs, QuartilesCutTheNumbersInQuarters) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> numbers(4 * (1 + random() % 50) + 1);
    for (double& n : numbers) n = static_cast<double>(random() % 1000);
    const Quartiles q = quartiles_of(numbers);
    const auto at_most = [&](double bound) {
      return static_cast<std::size_t>(
          std::count_if(numbers.begin(), numbers.end(), [&](double n) { return n <= bound; }));
    };
    EXPECT_GE(at_most(q.low), numbers.size() / 4 + 1);
    EXPECT_GE(at_most(q.median), numbers.size() / 2 + 1);
    EXPECT_GE(at_most(q.high), numbers.size() / 4 * 3 + 1);
    EXPECT_LE(q.low, q.median);
    EXPECT_LE(q.median, q.high);
  }
}

/// The ratio is one of pairs: a machine that slows down for a while slows both halves.
TEST(Pairs, RatiosAreTakenPairByPair) {
  const Pairs p{{9, 4, 18}, {10, 5, 20}};
  EXPECT_NEAR(p.ratio().low, 0.85, 1e-12);
  EXPECT_NEAR(p.ratio().median, 0.9, 1e-12);
  EXPECT_NEAR(p.ratio().high, 0.9, 1e-12);
}

}  // namespace
}  // namespace wisp::bench
