#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "../counted_new.hpp"
#include "rig.hpp"

namespace wisp::router {
namespace {

using testing::Rig;

std::vector<std::uint32_t> random_ids(std::mt19937_64& random, std::size_t n) {
  std::vector<std::uint32_t> ids(n);
  for (auto& id : ids) id = static_cast<std::uint32_t>(random() % Rig::kVocab);
  return ids;
}

TEST(RouterStage, BetweenTwoTokensOfAStreamThereIsAtMostAChunk) {
  for (const bool resident : {true, false}) {
    std::mt19937_64 random(1);
    Rig rig({5, 64, resident});
    std::vector<std::uint64_t> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(rig.submit(random_ids(random, 3), 200));
    rig.router().poll();
    ASSERT_TRUE(rig.compute());  // all four prompts
    rig.router().poll();
    const std::uint64_t late = rig.submit(random_ids(random, 1500), 5);
    ASSERT_TRUE(rig.compute());
    int chunks = 0;
    for (rig.router().poll(); rig.compute(); rig.router().poll()) {
      std::uint32_t prompt_rows = 0;
      std::size_t decoding = 0;
      for (const Rig::Part& p : rig.parts()) {
        if (p.prompt) prompt_rows += p.count;
        decoding += std::find(streams.begin(), streams.end(), p.request) != streams.end() ? 1 : 0;
      }
      if (prompt_rows == 0) break;
      ++chunks;
      EXPECT_EQ(decoding, 4u) << "a stream stalls for more than a chunk";
      EXPECT_LE(prompt_rows, resident ? 16u : 64u);
    }
    EXPECT_EQ(chunks, resident ? 94 : 24);
    EXPECT_EQ(rig.committed(late).length, 1u);
  }
}

TEST(RouterStage, ACancelledRequestIsInNoLaterStep) {
  std::mt19937_64 random(2);
  Rig rig({2, 16, true});
  const auto stays = rig.submit(random_ids(random, 5), 50), goes = rig.submit(random_ids(random, 1000), 50);
  rig.router().poll();
  ASSERT_TRUE(rig.compute());
  EXPECT_EQ(rig.parts().size(), 2u);
  rig.tell(ring::Kind::kCancel, goes);
  rig.router().poll();
  EXPECT_EQ(rig.board().cancel[1].load(), goes) << "compute looks here while it runs the step";
  ASSERT_TRUE(rig.compute());
  ASSERT_EQ(rig.parts().size(), 1u);
  EXPECT_EQ(rig.parts()[0].request, stays);
  rig.tell(ring::Kind::kCancel, stays);
  rig.router().poll();
  ASSERT_FALSE(rig.compute());
  EXPECT_FALSE(rig.router().has_work());
}

/// Requests at random, some cancelled, some lives of the router cut short: every answer is the one that the
/// model gives to its prompt alone, whatever the batch, the chunk, the places and the order.
TEST(RouterStage, AnswersDependOnThePromptAlone) {
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    Rig rig({static_cast<std::uint32_t>(1 + random() % 6), static_cast<std::uint32_t>(1 + random() % 80),
             random() % 2 == 0});
    struct Asked {
      std::vector<std::uint32_t> prompt;
      std::uint32_t tokens;
    };
    std::map<std::uint64_t, Asked> open;
    int left = 14;
    for (int turn = 0; left > 0 || !open.empty(); ++turn) {
      ASSERT_LT(turn, 100000);
      if (left > 0 && open.size() < 12 && random() % 4 == 0) {
        Asked a{random_ids(random, 1 + random() % 300), static_cast<std::uint32_t>(1 + random() % 40)};
        const std::uint64_t request = rig.submit(a.prompt, a.tokens);
        open.emplace(request, std::move(a));
        --left;
      }
      if (!open.empty() && random() % 60 == 0) rig.tell(ring::Kind::kCancel, open.begin()->first);
      if (random() % 50 == 0) rig.start();
      rig.router().poll();
      if (random() % 4 != 0) rig.compute();
      rig.hear();
      for (auto it = open.begin(); it != open.end();) {
        const auto* r = rig.record(it->first);
        if (r == nullptr || rig.committed(it->first).finish == shm::Finish::kNone) {
          ++it;
          continue;
        }
        const auto got = rig.answer(it->first);
        const auto want = Rig::expected(it->second.prompt, static_cast<std::uint32_t>(got.size()));
        ASSERT_EQ(got, want) << "request " << it->first;
        EXPECT_TRUE(rig.committed(it->first).finish == shm::Finish::kCancelled ||
                    got.size() == it->second.tokens);
        rig.tell(ring::Kind::kAcknowledge, it->first);
        it = open.erase(it);
      }
    }
  }
}

TEST(RouterStage, TakesNoMemoryFromStepToStep) {
  std::mt19937_64 random(3);
  Rig rig({4, 16, true});
  for (int i = 0; i < 3; ++i) rig.submit(random_ids(random, 10), 400);
  rig.submit(random_ids(random, 900), 100);
  rig.submit(random_ids(random, 900), 900);  // waits for a place, then for pages
  rig.router().poll();
  for (int step = 0; step < 300; ++step) {
    ASSERT_TRUE(rig.compute());
    rig.hear();
    const std::uint64_t before = wisp::testing::allocations();
    rig.router().poll();
    static_cast<void>(rig.router().has_work());
    ASSERT_EQ(wisp::testing::allocations() - before, 0u) << "in step " << step;
  }
}

}  // namespace
}  // namespace wisp::router
