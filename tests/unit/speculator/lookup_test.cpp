#include <gtest/gtest.h>

#include <random>

#include "services/speculator/prompt_lookup.hpp"
#include "services/speculator/script.hpp"
#include "services/speculator/suffix_automaton.hpp"

namespace wisp::speculator {
namespace {

/// Length of the longest suffix of ids[0, n) that ends before n - 1 too, by trying.
std::uint32_t longest_repeat(const std::vector<std::uint32_t>& ids, std::size_t n) {
  std::uint32_t best = 0;
  for (std::size_t end = 1; end < n; ++end) {
    std::uint32_t l = 0;
    while (l < end && ids[end - 1 - l] == ids[n - 1 - l]) ++l;
    best = std::max(best, l);
  }
  return best;
}

TEST(SuffixAutomaton, FindsTheLongestSuffixThatStoodBefore) {
  std::mt19937 random(1);
  for (const std::uint32_t alphabet : {1u, 2u, 3u, 20u, 4000u}) {
    SuffixAutomaton a;
    a.begin(400);
    std::vector<std::uint32_t> ids;
    for (int n = 0; n < 400; ++n) {
      // Copies of what was there, besides new tokens.
      const bool copy = ids.size() > 20 && random() % 4 != 0;
      ids.push_back(copy ? ids[ids.size() - 17] : static_cast<std::uint32_t>(random() % alphabet));
      a.append(ids.back());
      const SuffixAutomaton::Match m = a.match();
      ASSERT_EQ(m.length, longest_repeat(ids, ids.size())) << alphabet << " " << n;
      if (m.length == 0) continue;
      ASSERT_LT(m.end, ids.size());
      for (std::uint32_t i = 0; i < m.length; ++i)
        ASSERT_EQ(ids[m.end - 1 - i], ids[ids.size() - 1 - i]) << "the match is none";
    }
  }
}

TEST(SuffixAutomaton, WorksAgainAfterItWasReleased) {
  SuffixAutomaton a;
  for (int round = 0; round < 2; ++round) {
    a.begin(10);
    for (const std::uint32_t id : {5u, 6u, 7u, 5u, 6u}) a.append(id);
    EXPECT_EQ(a.match().length, 2u);
    EXPECT_EQ(a.match().end, 2u);
    a.release();
    EXPECT_EQ(a.size(), 0u);
  }
}

TEST(PromptLookup, SaysWhatFollowedAndGoesRoundInALoop) {
  PromptLookup lookup(2, 100);
  std::vector<std::uint32_t> ids{1, 2, 3, 4, 5, 6, 9, 1, 2, 3}, out(5);
  ASSERT_EQ(lookup.propose(0, 7, ids, out), 5u);
  EXPECT_EQ(out, (std::vector<std::uint32_t>{4, 5, 6, 9, 1}));
  EXPECT_EQ(lookup.matched(), 3u);
  ids = {8, 1, 2, 1, 2, 1, 2};
  ASSERT_EQ(lookup.propose(0, 8, ids, out), 5u) << "another request in the same place";
  EXPECT_EQ(out, (std::vector<std::uint32_t>{1, 2, 1, 2, 1}));
  ids = {8, 1, 2, 3, 1, 2};
  EXPECT_EQ(lookup.propose(1, 9, ids, out), 0u) << "two tokens say nothing";
  lookup.forget(0);
  lookup.forget(0);
}

TEST(PromptLookup, OneTokenAtATimeIsTheSameAsAllAtOnce) {
  std::mt19937 random(3);
  std::vector<std::uint32_t> ids, one(7), all(7);
  PromptLookup step(1, 300), whole(1, 300);
  for (int n = 0; n < 300; ++n) {
    ids.push_back(static_cast<std::uint32_t>(random() % 4));
    const std::uint32_t a = step.propose(0, 1, ids, one);
    const std::uint32_t b = whole.propose(0, static_cast<std::uint64_t>(n) + 1, ids, all);
    ASSERT_EQ(a, b);
    ASSERT_EQ(step.matched(), whole.matched());
    if (a != 0) {
      ASSERT_EQ(one, all);
    }
  }
}

}  // namespace
}  // namespace wisp::speculator
