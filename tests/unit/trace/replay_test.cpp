#include "services/replay/replay.hpp"

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <set>

#include "traces.hpp"

namespace wisp::replay {
namespace {

using trace::Trace;

/// Small random traces, touches of any size.
Trace small_trace(std::uint32_t seed, std::uint32_t touches) {
  std::mt19937 random(seed);
  Trace t;
  t.model = {"small", 2, 4, 2};
  for (std::uint32_t n = 0; n < touches; ++n) {
    std::vector<std::uint32_t> experts{0, 1, 2, 3};
    std::shuffle(experts.begin(), experts.end(), random);
    experts.resize(1 + random() % 3);
    trace::append(t, n % 2, experts);
  }
  return t;
}

/// The most hits of any cache that may keep, after each touch, any `slots` of what was there and what the
/// touch brought: all contents are tried.
std::uint64_t most_hits(const Trace& t, std::uint32_t slots) {
  std::map<std::uint32_t, std::uint64_t> best{{0u, 0u}};  // contents as bits -> hits so far
  for (const auto& touch : t.touches) {
    std::uint32_t set = 0;
    for (const auto& a : t.of(touch)) set |= 1u << (touch.layer * t.model.experts + a.expert);
    std::map<std::uint32_t, std::uint64_t> next;
    for (const auto& [contents, hits] : best) {
      const std::uint64_t now = hits + static_cast<unsigned>(__builtin_popcount(contents & set));
      const std::uint32_t all = contents | set;
      for (std::uint32_t keep = all;; keep = (keep - 1) & all) {
        if (static_cast<std::uint32_t>(__builtin_popcount(keep)) <= slots)
          next[keep] = std::max(next[keep], now);
        if (keep == 0) break;
      }
    }
    best = std::move(next);
  }
  std::uint64_t most = 0;
  for (const auto& [contents, hits] : best) most = std::max(most, hits);
  return most;
}

TEST(Replay, BeladyIsTheMostThatAnyChoiceReaches) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    const Trace t = small_trace(seed, 14);
    for (std::uint32_t slots = 1; slots <= 7; ++slots)
      EXPECT_EQ(replay(t, slots, Policy::kBelady).hits, most_hits(t, slots))
          << "seed " << seed << ", " << slots;
  }
}

/// LRU as a list that is searched.
std::uint64_t plain_lru(const Trace& t, std::uint32_t slots) {
  std::list<std::uint32_t> order;  // newest first
  std::uint64_t hits = 0;
  for (const auto& touch : t.touches) {
    std::vector<std::uint32_t> misses;
    for (const auto& a : t.of(touch)) {
      const std::uint32_t key = touch.layer * t.model.experts + a.expert;
      const auto at = std::find(order.begin(), order.end(), key);
      if (at == order.end()) {
        misses.push_back(key);
      } else {
        order.erase(at);
        order.push_front(key);
        ++hits;
      }
    }
    for (const std::uint32_t key : misses) {
      if (order.size() == slots) order.pop_back();
      order.push_front(key);
    }
  }
  return hits;
}

TEST(Replay, LruIsLru) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const Trace t = small_trace(seed, 300);
    for (std::uint32_t slots = 1; slots <= 9; ++slots)
      EXPECT_EQ(replay(t, slots, Policy::kLru).hits, plain_lru(t, slots)) << "seed " << seed << ", " << slots;
  }
}

TEST(Replay, NothingPassesBeladyAndAllCountTheSameAccesses) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const Trace t = small_trace(seed, 200);
    for (std::uint32_t slots = 1; slots <= 9; ++slots) {
      const Figures bound = replay(t, slots, Policy::kBelady);
      for (const Policy p : {Policy::kDefault, Policy::kLru}) {
        const Figures f = replay(t, slots, p);
        EXPECT_EQ(f.accesses, t.accesses.size());
        EXPECT_LE(f.hits, bound.hits) << "seed " << seed << ", " << slots;
      }
    }
  }
}

TEST(Replay, AllSlotsThatThereAreExpertsMissOnceEach) {
  const Trace t = small_trace(5, 200);
  std::set<std::uint32_t> distinct;
  for (const auto& touch : t.touches)
    for (const auto& a : t.of(touch)) distinct.insert(touch.layer * 4 + a.expert);
  for (const Policy p : {Policy::kDefault, Policy::kLru, Policy::kBelady})
    for (const std::uint32_t slots : {8u, 9u, 1u << 30})
      EXPECT_EQ(replay(t, slots, p).hits, t.accesses.size() - distinct.size());
}

TEST(Replay, DecodeIsCountedApart) {
  Trace t;
  t.model = {"", 1, 8, 2};
  trace::append(t, 0, {1, 2});
  t.touches.back().decode = false;
  trace::append(t, 0, {1, 2});
  trace::append(t, 0, {3, 2});
  const Figures f = replay(t, 4, Policy::kDefault);
  EXPECT_EQ(f.accesses, 6u);
  EXPECT_EQ(f.hits, 3u);
  EXPECT_EQ(f.decode_accesses, 4u);
  EXPECT_EQ(f.decode_hits, 3u);
}

TEST(Replay, PoliciesByName) {
  EXPECT_EQ(*policy_of("default"), Policy::kDefault);
  EXPECT_EQ(*policy_of("lru"), Policy::kLru);
  EXPECT_EQ(*policy_of("belady"), Policy::kBelady);
  EXPECT_FALSE(policy_of("fifo").ok());
}

}  // namespace
}  // namespace wisp::replay
