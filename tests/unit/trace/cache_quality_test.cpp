#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "services/replay/replay.hpp"
#include "traces.hpp"

/// The engine's policy against LRU and against Belady's bound.
namespace wisp::replay {
namespace {

using trace::Trace;

Trace recorded(const std::string& name) {
  auto t = trace::read_trace(std::string(WISP_TEST_DATA) + "/traces/" + name);
  EXPECT_TRUE(t.ok()) << (t.ok() ? "" : t.error().text);
  return t.ok() ? std::move(t.value()) : Trace{};
}

std::uint32_t slots_of(const Trace& t, std::uint32_t permille) {
  return std::max(1u, t.model.layers * t.model.experts * permille / 1000);
}

struct Wanted {
  std::uint32_t permille;
  double least;  ///< of Belady's hits
};

void expect_quality(const Trace& t, std::initializer_list<Wanted> wanted) {
  for (const Wanted& w : wanted) {
    const std::uint32_t slots = slots_of(t, w.permille);
    const double ratio = static_cast<double>(replay(t, slots, Policy::kDefault).hits) /
                         static_cast<double>(replay(t, slots, Policy::kBelady).hits);
    EXPECT_GE(ratio, w.least) << w.permille << " permille of the bank";
    if (std::getenv("WISP_SHOW") != nullptr) std::printf("%u permille: %.4f\n", w.permille, ratio);
  }
}

/// From far below one token's experts up to the whole bank.
void expect_never_under_lru(const Trace& t) {
  for (const std::uint32_t permille :
       {3, 5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 250, 300, 350, 400, 500, 600, 700, 800, 900, 1000}) {
    const std::uint32_t slots = slots_of(t, permille);
    EXPECT_GE(replay(t, slots, Policy::kDefault).hits, replay(t, slots, Policy::kLru).hits)
        << permille << " permille of the bank";
  }
}

TEST(CacheQuality, OnQwen) {
  const Trace t = recorded("qwen-every-4th-layer.route.csv");
  expect_quality(t, {{40, 0.66}, {100, 0.775}, {200, 0.865}, {350, 0.95}});
  expect_never_under_lru(t);
}

TEST(CacheQuality, OnGptOss) {
  const Trace t = recorded("gptoss.route.csv");
  expect_quality(t, {{40, 0.67}, {100, 0.77}, {200, 0.855}, {350, 0.955}});
  expect_never_under_lru(t);
}

double even(std::uint32_t, std::uint32_t, std::uint32_t) {
  return 1.0;
}
/// Every layer has its own order of popular experts.
double popular(std::uint32_t layer, std::uint32_t expert, std::uint32_t turn) {
  return 1.0 / (1.0 + (expert * (5 + 2 * turn) + layer * 7 + turn * 29) % 64);
}

TEST(CacheQuality, NotUnderLruWhereAllExpertsAreAlike) {
  expect_never_under_lru(trace::drawn_trace({"even", 16, 64, 4}, 300, 1, even));
}

TEST(CacheQuality, NotUnderLruWhereSomeArePopular) {
  expect_never_under_lru(
      trace::drawn_trace({"popular", 16, 64, 4}, 300, 2,
                         [](std::uint32_t, std::uint32_t l, std::uint32_t e) { return popular(l, e, 0); }));
}

TEST(CacheQuality, NotUnderLruWhereTheTopicChanges) {
  expect_never_under_lru(trace::drawn_trace(
      {"topics", 16, 64, 4}, 400, 3,
      [](std::uint32_t n, std::uint32_t l, std::uint32_t e) { return popular(l, e, n < 200 ? 0 : 1); }));
}

/// Share of hits of the second half of a trace's decoding, with a long prompt of another topic before it or
/// not.
double hits_after(const Trace& t, std::uint32_t slots, std::size_t chunks, Policy policy) {
  const trace::Tokens tokens(t);
  std::vector<std::vector<std::uint32_t>> renamed(t.model.layers);
  std::mt19937 random(5);
  for (auto& names : renamed) {
    for (std::uint32_t e = 0; e < t.model.experts; ++e) names.push_back(e);
    std::shuffle(names.begin(), names.end(), random);
  }
  Trace made;
  made.model = t.model;
  const std::size_t half = tokens.size() / 2;
  for (std::size_t i = 0; i < half; ++i) tokens.append(made, i, i + 1, true);
  for (std::size_t c = 0; c < chunks; ++c)
    tokens.append(made, c * tokens.size() / chunks, (c + 1) * tokens.size() / chunks, false, &renamed);
  const Figures before = replay(made, slots, policy);
  for (std::size_t i = half; i < tokens.size(); ++i) tokens.append(made, i, i + 1, true);
  const Figures after = replay(made, slots, policy);
  return static_cast<double>(after.decode_hits - before.decode_hits) /
         static_cast<double>(after.decode_accesses - before.decode_accesses);
}

/// LRU loses up to 14 hits of 100 here.
TEST(CacheQuality, HotExpertsOutliveALongPrompt) {
  for (const char* name : {"qwen-every-4th-layer.route.csv", "gptoss.route.csv"}) {
    const Trace t = recorded(name);
    for (const std::uint32_t permille : {40, 100, 200, 350, 500})
      for (const std::size_t chunks : {1, 2, 4}) {
        const std::uint32_t slots = slots_of(t, permille);
        const double alone = hits_after(t, slots, 0, Policy::kDefault);
        const double beside = hits_after(t, slots, chunks, Policy::kDefault);
        if (std::getenv("WISP_SHOW") != nullptr)
          std::printf("%s %u permille, %zu chunks: %.3f, then %.3f; lru %.3f, then %.3f\n", name, permille,
                      chunks, alone, beside, hits_after(t, slots, 0, Policy::kLru),
                      hits_after(t, slots, chunks, Policy::kLru));
        EXPECT_GE(beside, alone - 0.06) << name << ", " << permille << " permille, " << chunks << " chunks";
      }
  }
}

/// LRU has no hit at all where the slots are fewer than one token's experts.
TEST(CacheQuality, HitsBelowOneTokensExperts) {
  const Trace t = recorded("qwen-every-4th-layer.route.csv");
  const std::uint32_t slots = t.model.layers * t.model.top_k * 2 / 3;
  EXPECT_LT(replay(t, slots, Policy::kLru).hits, t.accesses.size() / 100);
  EXPECT_GT(replay(t, slots, Policy::kDefault).hits, t.accesses.size() / 4);
}

}  // namespace
}  // namespace wisp::replay
