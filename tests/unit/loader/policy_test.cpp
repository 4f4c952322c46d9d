#include <gtest/gtest.h>

#include <algorithm>
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
std::size_t replay(CachePolicy& policy, std::uint32_t layer, const Members& set,
                   std::vector<std::uint32_t>* evicted = nullptr,
                   CachePolicy::Rows rows = CachePolicy::Rows::kDecode) {
  const auto resident = policy.admit(layer, set, true, rows);
  const std::vector<std::uint8_t> hits(resident.begin(), resident.end());
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
  EXPECT_EQ(replay(policy, 0, set_of(0, {1, 2, 3}), &evicted), 0u);
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ(policy.residents(), 3u);
  EXPECT_EQ(replay(policy, 0, set_of(0, {3, 2, 1}), &evicted), 3u);
  EXPECT_TRUE(evicted.empty());
}

TEST(CachePolicy, SetLargerThanTheSlotsPassesThroughThem) {
  for (std::uint32_t slots = 2; slots <= 9; ++slots) {
    CachePolicy policy({slots, 2, 16, 8});
    std::vector<std::uint32_t> evicted;
    std::vector<std::uint32_t> experts(8);
    std::iota(experts.begin(), experts.end(), 0u);
    EXPECT_EQ(replay(policy, 0, set_of(0, experts), &evicted), 0u);
    ASSERT_EQ(evicted.size(), slots < 8 ? 8 - slots : 0u);
    for (std::uint32_t i = 0; i < evicted.size(); ++i) EXPECT_EQ(evicted[i], ring::expert_key(0, i)) << slots;
    // What is left are the last ones; those are hits the next time.
    EXPECT_EQ(replay(policy, 0, set_of(0, {7, 6})), 2u);
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
      const auto hits = policy.admit(layer, set);
      for (std::size_t i = 0; i < set.size(); ++i)
        ASSERT_EQ(hits[i] != 0, policy.slot_of(set[i].key).has_value());
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

/// Whatever the slots, the sets and how many prompts: what decoding used stays but for the share of prompts.
TEST(CachePolicy, PromptsTakeTheirShareAndNoMore) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 engine(seed);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  for (int round = 0; round < 60; ++round) {
    const std::uint32_t layers = 1 + random() % 6, experts = 8 + random() % 40, top_k = 1 + random() % 4;
    const std::uint32_t slots = 2 + random() % (layers * experts - 1);
    CachePolicy policy({slots, layers, experts, top_k});
    const auto draw = [&](std::uint32_t layer, std::uint32_t n) {
      std::vector<std::uint32_t> all(experts);
      std::iota(all.begin(), all.end(), 0u);
      std::shuffle(all.begin(), all.end(), engine);
      all.resize(std::min(n, experts));
      return set_of(layer, all);
    };
    while (policy.residents() < slots)
      for (std::uint32_t l = 0; l < layers; ++l) replay(policy, l, draw(l, top_k));
    const auto residents = [&] {
      std::set<std::uint32_t> keys;
      for (std::uint32_t l = 0; l < layers; ++l)
        for (std::uint32_t e = 0; e < experts; ++e)
          if (policy.slot_of(ring::expert_key(l, e))) keys.insert(ring::expert_key(l, e));
      return keys;
    };
    const std::set<std::uint32_t> before = residents();
    ASSERT_EQ(policy.passing(), 0u);
    std::vector<std::uint32_t> evicted;
    for (std::uint32_t chunk = 0; chunk < 1 + random() % 3; ++chunk)
      for (std::uint32_t l = 0; l < layers; ++l)
        replay(policy, l, draw(l, top_k + random() % experts), &evicted, CachePolicy::Rows::kPrompt);
    std::uint32_t gone = 0;
    for (const std::uint32_t key : before) gone += policy.slot_of(key) ? 0 : 1;
    EXPECT_LE(gone, std::max(slots / 4, std::min(slots, 2 * top_k)))
        << slots << " slots, " << layers << " layers of " << experts;
    EXPECT_LE(policy.passing(), policy.most_passing());
    EXPECT_EQ(policy.residents(), slots);
    // Decoding is bound by nothing, and what it hits is its own from then on.
    for (std::uint32_t l = 0; l < layers; ++l) {
      const Members set = draw(l, std::min(top_k, slots));
      replay(policy, l, set);
      for (const auto& m : set) EXPECT_TRUE(policy.slot_of(m.key) || set.size() > slots);
    }
  }
}

/// At the bound the oldest of the prompt's own goes last, and is waited for rather than anything else taken.
TEST(CachePolicy, APromptAtItsBoundWaitsForItsOwnSlots) {
  CachePolicy policy({16, 1, 64, 1});
  for (std::uint32_t e = 0; e < 16; ++e) replay(policy, 0, set_of(0, {e}));
  std::vector<std::uint32_t> experts(20);
  std::iota(experts.begin(), experts.end(), 20u);
  const Members set = set_of(0, experts);
  policy.admit(0, set, true, CachePolicy::Rows::kPrompt);
  ASSERT_EQ(policy.most_passing(), 4u);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto c = policy.choose();
    ASSERT_TRUE(c && ring::expert_of(c->key) < 16);
    policy.remove(c->slot);
    policy.insert(c->slot, set[i].key);
  }
  EXPECT_FALSE(policy.choose()) << "none of its own was served";
  policy.serve(set[1].key);
  EXPECT_FALSE(policy.choose()) << "the first was not";
  policy.serve(set[0].key);
  ASSERT_TRUE(policy.choose());
  EXPECT_EQ(policy.choose()->key, set[0].key);
  // Where none of them can ever be had, anything else is taken before the prompt stands still.
  const auto none_of_its_own = [&](std::uint32_t slot) {
    for (const auto& m : set)
      if (policy.slot_of(m.key) == slot) return CachePolicy::Verdict::kNever;
    return CachePolicy::Verdict::kTake;
  };
  for (std::uint32_t i = 0; i < 4; ++i) policy.serve(set[i].key);
  const auto other = policy.choose(none_of_its_own);
  ASSERT_TRUE(other);
  EXPECT_LT(ring::expert_of(other->key), 16u);
}

TEST(CachePolicy, MembersGoInTheirOrderWhicheverWasServedFirst) {
  CachePolicy policy({2, 1, 8, 4});
  const Members set = set_of(0, {0, 1, 2});
  policy.admit(0, set);
  policy.insert(policy.choose()->slot, set[0].key);
  policy.insert(policy.choose()->slot, set[1].key);
  EXPECT_FALSE(policy.choose());
  policy.serve(set[1].key);
  EXPECT_FALSE(policy.choose()) << "the first is not served yet";
  policy.serve(set[0].key);
  policy.serve(ring::expert_key(0, 7));  // not of the set
  EXPECT_EQ(policy.choose()->key, set[0].key);
  const std::uint32_t first = policy.choose()->slot;
  const auto held = [&](CachePolicy::Verdict v) {
    return policy.choose([=](std::uint32_t s) { return s == first ? v : CachePolicy::Verdict::kTake; });
  };
  EXPECT_FALSE(held(CachePolicy::Verdict::kWait));
  EXPECT_EQ(held(CachePolicy::Verdict::kNever)->key, set[1].key);
}

TEST(CachePolicy, HeldAndWithdrawnSlotsAreNotChosen) {
  CachePolicy policy({4, 2, 8, 2});
  replay(policy, 0, set_of(0, {0, 1, 2, 3}));
  policy.admit(1, set_of(1, {5}));
  std::set<std::uint32_t> held;
  while (const auto c = policy.choose([&](std::uint32_t s) {
    return held.contains(s) ? CachePolicy::Verdict::kWait : CachePolicy::Verdict::kTake;
  })) {
    EXPECT_TRUE(c->evicts);
    held.insert(c->slot);
  }
  EXPECT_EQ(held.size(), 4u);
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
    for (CachePolicy* p : {&once, &repeated}) replay(*p, 0, set_of(0, {e}));
    for (int i = 0; i < 5; ++i) repeated.admit(0, set_of(0, {e}), false);
  }
  once.admit(0, set_of(0, {5}));
  repeated.admit(0, set_of(0, {5}));
  EXPECT_EQ(once.choose()->key, repeated.choose()->key);
}

TEST(CachePolicy, SeededExpertsStayLongest) {
  CachePolicy policy({3, 1, 8, 1});
  for (const std::uint32_t e : {1u, 2u, 3u}) policy.insert(policy.choose()->slot, ring::expert_key(0, e));
  policy.seed(ring::expert_key(0, 1), 0.5f, 16);
  policy.seed(ring::expert_key(0, 2), 0.01f, 16);
  policy.seed(ring::expert_key(0, 3), 0.25f, 16);
  std::vector<std::uint32_t> evicted;
  for (const std::uint32_t e : {4u, 5u}) replay(policy, 0, set_of(0, {e}), &evicted);
  ASSERT_EQ(evicted.size(), 2u);
  EXPECT_EQ(evicted[0], ring::expert_key(0, 2));
}

/// The rule to compare with, against a list that is searched.
TEST(CachePolicy, LruIsLru) {
  for (const std::uint32_t slots : {1u, 2u, 5u, 12u, 30u}) {
    CachePolicy policy({slots, 4, 8, 1, true});
    std::mt19937 random(slots);
    std::vector<std::uint32_t> order;  // newest first
    for (int n = 0; n < 4000; ++n) {
      const auto layer = static_cast<std::uint32_t>(n % 4);
      const auto expert = static_cast<std::uint32_t>(std::min(random() % 8, random() % 8));
      const CachePolicy::Member m{ring::expert_key(layer, expert), 1};
      const auto at = std::find(order.begin(), order.end(), m.key);
      const auto rows = n % 3 == 0 ? CachePolicy::Rows::kPrompt : CachePolicy::Rows::kDecode;
      ASSERT_EQ(policy.admit(layer, {&m, 1}, true, rows)[0] != 0, at != order.end()) << n;
      if (at != order.end()) {
        order.erase(at);
      } else {
        const auto choice = policy.choose();
        ASSERT_TRUE(choice);
        ASSERT_EQ(choice->evicts, order.size() == slots);
        if (choice->evicts) {
          ASSERT_EQ(choice->key, order.back());
          policy.remove(choice->slot);
          order.pop_back();
        }
        policy.insert(choice->slot, m.key);
      }
      policy.serve(m.key);
      order.insert(order.begin(), m.key);
    }
  }
}

}  // namespace
}  // namespace wisp::loader
