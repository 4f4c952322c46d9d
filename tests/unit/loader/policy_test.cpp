#include <gtest/gtest.h>

#include <list>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "ring/descriptor.hpp"
#include "services/loader/cache_policy.hpp"

namespace wisp::loader {
namespace {

using Members = std::vector<CachePolicy::Member>;

Members set_of(std::uint32_t layer, const std::vector<std::uint32_t>& experts) {
  Members set;
  for (const std::uint32_t e : experts) set.push_back({ring::expert_key(layer, e), 1});
  return set;
}

/// One touch as the simulator replays it: every miss is placed and served at once. Returns the hits.
std::size_t replay(CachePolicy& policy, std::uint64_t step, std::uint32_t layer, const Members& set,
                   std::vector<std::uint32_t>* evicted = nullptr) {
  const auto hits = policy.admit(step, layer, set);
  std::size_t n = 0;
  for (std::size_t i = 0; i < set.size(); ++i)
    if (hits[i]) {
      policy.serve(set[i].key);
      ++n;
    }
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (hits[i]) continue;
    const auto c = policy.choose();
    EXPECT_TRUE(c.has_value());
    if (!c) return n;
    if (c->evicts) {
      if (evicted != nullptr) evicted->push_back(c->key);
      policy.remove(c->slot);
    }
    policy.insert(c->slot, set[i].key);
    policy.serve(set[i].key);
  }
  return n;
}

TEST(CachePolicy, FreeSlotsGoFirst) {
  CachePolicy policy({4, 2, 8, 2});
  std::vector<std::uint32_t> evicted;
  EXPECT_EQ(replay(policy, 1, 0, set_of(0, {1, 2, 3}), &evicted), 0u);
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ(policy.residents(), 3u);
  EXPECT_EQ(replay(policy, 2, 0, set_of(0, {3, 2, 1}), &evicted), 3u);
  EXPECT_TRUE(evicted.empty());
}

TEST(CachePolicy, SetLargerThanTheSlotsPassesThroughThem) {
  for (std::uint32_t slots = 2; slots <= 9; ++slots) {
    CachePolicy policy({slots, 2, 16, 8});
    std::vector<std::uint32_t> evicted;
    std::vector<std::uint32_t> experts(8);
    std::iota(experts.begin(), experts.end(), 0u);
    EXPECT_EQ(replay(policy, 1, 0, set_of(0, experts), &evicted), 0u);
    ASSERT_EQ(evicted.size(), slots < 8 ? 8 - slots : 0u);
    for (std::uint32_t i = 0; i < evicted.size(); ++i) EXPECT_EQ(evicted[i], ring::expert_key(0, i)) << slots;
    // What is left are the last ones; those are hits the next time.
    EXPECT_EQ(replay(policy, 2, 0, set_of(0, {7, 6})), 2u);
  }
}

TEST(CachePolicy, NothingInsideTheSetGoesWhileSomethingElseIsThere) {
  std::mt19937 random(7);
  CachePolicy policy({24, 4, 32, 4});
  for (std::uint64_t step = 0; step < 400; ++step) {
    for (std::uint32_t layer = 0; layer < 4; ++layer) {
      std::set<std::uint32_t> experts;
      while (experts.size() < 1 + random() % 20) experts.insert(static_cast<std::uint32_t>(random() % 32));
      const Members set = set_of(layer, {experts.begin(), experts.end()});
      const auto hits = policy.admit(step, layer, set);
      for (std::size_t i = 0; i < set.size(); ++i) ASSERT_EQ(hits[i], policy.slot_of(set[i].key).has_value());
      for (std::size_t i = 0; i < set.size(); ++i) {
        if (hits[i]) continue;
        const auto c = policy.choose();
        ASSERT_TRUE(c);
        if (c->evicts) {
          for (const auto& m : set) ASSERT_NE(m.key, c->key) << "24 slots, at most 20 in the set";
          policy.remove(c->slot);
        }
        policy.insert(c->slot, set[i].key);
      }
    }
  }
}

TEST(CachePolicy, MembersNotYetServedStay) {
  CachePolicy policy({2, 1, 8, 4});
  const Members set = set_of(0, {0, 1, 2});
  policy.admit(1, 0, set);
  policy.insert(policy.choose()->slot, set[0].key);
  policy.insert(policy.choose()->slot, set[1].key);
  EXPECT_FALSE(policy.choose());
  policy.serve(set[1].key);
  policy.serve(set[0].key);
  policy.serve(ring::expert_key(0, 7));  // not of the set
  EXPECT_EQ(policy.choose()->key, set[1].key);
  const std::uint32_t first = policy.choose()->slot;
  EXPECT_EQ(policy.choose([&](std::uint32_t s) { return s == first; })->key, set[0].key);
}

TEST(CachePolicy, ExcludedAndWithdrawnSlotsAreNotChosen) {
  CachePolicy policy({4, 2, 8, 2});
  replay(policy, 1, 0, set_of(0, {0, 1, 2, 3}));
  policy.admit(2, 1, set_of(1, {5}));
  std::set<std::uint32_t> excluded;
  while (const auto c = policy.choose([&](std::uint32_t s) { return excluded.contains(s); })) {
    EXPECT_TRUE(c->evicts);
    excluded.insert(c->slot);
  }
  EXPECT_EQ(excluded.size(), 4u);
  EXPECT_EQ(policy.residents(), 4u);
  const std::uint32_t slot = *policy.slot_of(ring::expert_key(0, 2));
  policy.withdraw(slot);
  EXPECT_FALSE(policy.slot_of(ring::expert_key(0, 2)));
  EXPECT_EQ(policy.residents(), 3u);
  EXPECT_EQ(policy.withdrawn(), 1u);
  EXPECT_NE(policy.choose()->slot, slot);
  policy.restore(slot);
  EXPECT_EQ(policy.choose()->slot, slot);
  EXPECT_FALSE(policy.choose()->evicts);
}

TEST(CachePolicy, ResidentsOfARebuildCanGoBeforeAnyTouch) {
  CachePolicy policy({2, 2, 8, 2});
  policy.insert(0, ring::expert_key(0, 1));
  policy.insert(1, ring::expert_key(1, 1));
  const auto c = policy.choose();
  ASSERT_TRUE(c);
  EXPECT_TRUE(c->evicts);
}

TEST(CachePolicy, RepeatedTouchesCountNothing) {
  CachePolicy once({3, 1, 8, 1}), repeated({3, 1, 8, 1});
  for (std::uint32_t e : {0u, 1u, 2u, 0u, 0u, 1u}) {
    for (CachePolicy* p : {&once, &repeated}) replay(*p, e, 0, set_of(0, {e}));
    for (int i = 0; i < 5; ++i) repeated.admit(e, 0, set_of(0, {e}), false);
  }
  once.admit(9, 0, set_of(0, {5}));
  repeated.admit(9, 0, set_of(0, {5}));
  EXPECT_EQ(once.choose()->key, repeated.choose()->key);
}

TEST(CachePolicy, NotWorseThanLruOnSkewedChoices) {
  constexpr std::uint32_t kLayers = 8, kExperts = 64, kTopK = 4;
  for (const std::uint32_t slots : {16u, 24u, 40u, 80u, 160u, 300u}) {
    std::mt19937 random(slots);
    std::vector<double> weight(kExperts);
    for (std::uint32_t e = 0; e < kExperts; ++e) weight[e] = 1.0 / (e + 1.0);
    std::discrete_distribution<std::uint32_t> draw(weight.begin(), weight.end());
    CachePolicy policy({slots, kLayers, kExperts, kTopK});
    std::list<std::uint32_t> order;
    std::map<std::uint32_t, std::list<std::uint32_t>::iterator> where;
    std::size_t hits = 0, lru = 0;
    for (std::uint64_t step = 0; step < 600; ++step) {
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
        std::set<std::uint32_t> chosen;
        while (chosen.size() < kTopK) chosen.insert((draw(random) + layer * 7) % kExperts);
        const Members set = set_of(layer, {chosen.begin(), chosen.end()});
        hits += replay(policy, step, layer, set);
        for (const auto& m : set) {
          if (const auto it = where.find(m.key); it != where.end()) {
            ++lru;
            order.erase(it->second);
          } else if (order.size() == slots) {
            where.erase(order.back());
            order.pop_back();
          }
          order.push_front(m.key);
          where[m.key] = order.begin();
        }
      }
    }
    EXPECT_GE(hits, lru) << slots << " slots";
    EXPECT_GT(hits, 0u) << slots << " slots, also below one step's experts";
  }
}

}  // namespace
}  // namespace wisp::loader
