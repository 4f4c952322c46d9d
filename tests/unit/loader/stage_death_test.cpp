#include <gtest/gtest.h>
#include <poll.h>

#include <map>
#include <numeric>
#include <set>

#include "rig.hpp"

namespace wisp::loader {
namespace {

using ring::expert_key;
using ring::Kind;
using shm::StageId;
using slab::SlotState;
using slab::SlotWord;
using stats::Counter;

std::map<std::uint32_t, int> collect(Rig& rig, std::size_t keys) {
  std::map<std::uint32_t, int> answers;
  EXPECT_TRUE(rig.until([&] {
    for (const Seen& s : rig.take(true)) {
      EXPECT_EQ(s.kind, Kind::kSlotReady);
      EXPECT_TRUE(rig.intact(s.slot));
      ++answers[s.key];
      rig.release(s.slot);
    }
    return answers.size() == keys;
  }));
  return answers;
}

TEST(LoaderDeath, LeftoverFillsDrainBeforeTheirSlotsAreUsed) {
  TinyModel model;
  Rig rig(model, 4);
  FaultBackend* faults = rig.start_with_faults();
  ASSERT_TRUE(rig.load_dense());
  rig.touch(0, {0, 1});
  collect(rig, 2);
  faults->hold = true;
  rig.touch(1, {5, 6});
  ASSERT_TRUE(rig.until([&] { return rig.in_state(SlotState::kFilling) == 2; }));
  std::set<std::uint32_t> poisoned;
  for (std::uint32_t s = 0; s < 4; ++s)
    if (rig.word(s).state == SlotState::kFilling) poisoned.insert(s);

  ASSERT_TRUE(rig.start().ok());
  EXPECT_EQ(rig.count(Counter::kSlotsDraining), 2u);
  EXPECT_EQ(rig.in_state(SlotState::kReady), 2u);
  EXPECT_NE(rig.slot_of(expert_key(0, 0)), 0u);
  rig.touch(1, {5, 6, 7, 8}, ring::kTouchAgain);
  for (const auto& [key, n] : collect(rig, 4)) EXPECT_EQ(n, 1) << key;
  for (const std::uint32_t s : poisoned) {
    EXPECT_EQ(rig.word(s).state, SlotState::kFilling) << "a slot was used before its reads had drained";
    EXPECT_EQ(rig.dir()->entries()[s].fill_epoch.load(), 1u);
  }
  rig.drained(1);
  EXPECT_TRUE(rig.loader().has_work());
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.count(Counter::kSlotsDraining), 0u);
  EXPECT_EQ(rig.in_state(SlotState::kFilling), 0u);
  EXPECT_EQ(rig.in_state(SlotState::kFree), 2u);
  rig.touch(2, {0, 1, 2, 3});
  collect(rig, 4);
}

TEST(LoaderDeath, AllSlotsPoisonedWaitsForTheTombstone) {
  TinyModel model;
  Rig rig(model, 2);
  FaultBackend* faults = rig.start_with_faults();
  ASSERT_TRUE(rig.load_dense());
  faults->hold = true;
  rig.touch(0, {0, 1, 2});
  ASSERT_TRUE(rig.until([&] { return rig.in_state(SlotState::kFilling) == 2; }));
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0, 1, 2}, ring::kTouchAgain);
  ASSERT_TRUE(rig.idle());
  EXPECT_TRUE(rig.take().empty());
  // A second life dies before the first has drained; epoch 2 drains first.
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0, 1, 2}, ring::kTouchAgain);
  rig.drained(2);
  ASSERT_TRUE(rig.idle());
  EXPECT_TRUE(rig.take().empty());
  rig.drained(1);
  collect(rig, 3);
}

TEST(LoaderDeath, EvictingGoesBackToReady) {
  TinyModel model;
  Rig rig(model, 3);
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0, 1, 2});
  collect(rig, 3);
  SlotWord w = rig.word(1);
  const SlotWord before = w;
  w.state = SlotState::kEvicting;
  rig.kill();
  rig.dir()->entries()[1].word.store(w.pack());
  ASSERT_TRUE(rig.start().ok());
  EXPECT_EQ(rig.word(1).pack(), before.pack());
  EXPECT_NE(rig.lease(before.key), 0u);
  EXPECT_EQ(rig.count(Counter::kSlotsDraining), 0u);
}

TEST(LoaderDeath, LeasesAndUnreadAnswersAreHonouredByTheSuccessor) {
  TinyModel model;
  Rig rig(model, 3);
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0, 1, 2});
  ASSERT_TRUE(rig.idle());
  const auto taken = rig.take(true, 1);  // one leased, two unread
  ASSERT_EQ(taken.size(), 1u);
  ASSERT_TRUE(rig.start().ok());
  rig.need(expert_key(1, 1));
  ASSERT_TRUE(rig.until([&] { return rig.board()->waits_for_lease.load() != 0; }));
  EXPECT_EQ(rig.in_state(SlotState::kReady), 3u);
  for (const Seen& s : rig.take(true)) rig.release(s.slot);
  ASSERT_TRUE(rig.idle());
  EXPECT_NE(rig.slot_of(taken[0].key), 0u) << "the leased slot was evicted";
  EXPECT_NE(rig.slot_of(expert_key(1, 1)), 0u);
}

TEST(LoaderDeath, GenerationsGrowOverLives) {
  TinyModel model;
  Rig rig(model, 2);
  std::map<std::uint32_t, std::uint32_t> last;
  for (int round = 0; round < 6; ++round) {
    ASSERT_TRUE(rig.start().ok());
    rig.touch(static_cast<std::uint32_t>(round % 3), {0, 1, 2, 3});
    collect(rig, 4);
    for (std::uint32_t s = 0; s < 2; ++s) {
      EXPECT_GT(rig.word(s).generation, last[s]);
      last[s] = rig.word(s).generation;
    }
  }
}

TEST(ComputeDeath, OpenNeedsOfTheOldLifeAreDroppedAndItsLeasesIgnored) {
  TinyModel model;
  Rig rig(model, 2);
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0, 1, 2, 3});
  ASSERT_TRUE(rig.until([&] { return rig.board()->waits_for_lease.load() != 0; }));
  const auto held = rig.take(true);
  ASSERT_EQ(held.size(), 2u);
  // It dies with both leases: nobody else is there yet, and the loader goes on.
  rig.life()->stage[shm::index(StageId::kCompute)].dead_through.store(1);
  EXPECT_TRUE(rig.loader().has_work());
  ASSERT_TRUE(rig.idle());
  rig.start_compute();
  ASSERT_TRUE(rig.idle());
  rig.take();
  rig.touch(2, {4, 5, 6}, ring::kTouchAgain);
  for (const auto& [key, n] : collect(rig, 3)) EXPECT_EQ(n, 1) << key;
  ASSERT_TRUE(rig.idle());
  EXPECT_TRUE(rig.take().empty());
}

TEST(ComputeDeath, TouchAgainReplacesTheOpenOne) {
  TinyModel model;
  Rig rig(model, 2);
  FaultBackend* faults = rig.start_with_faults();
  ASSERT_TRUE(rig.load_dense());
  faults->hold = true;
  rig.touch(0, {0, 1, 2, 3});
  ASSERT_TRUE(rig.until([&] { return rig.in_state(SlotState::kFilling) == 2; }));
  rig.touch(1, {8, 9, 10}, ring::kTouchAgain);
  ASSERT_TRUE(rig.idle(5) || true);
  faults->release();
  const auto answers = collect(rig, 3);
  for (const std::uint32_t e : {8u, 9u, 10u}) EXPECT_EQ(answers.count(expert_key(1, e)), 1u);
  // All three may have gone through one slot while the other's read was still on its way.
  EXPECT_TRUE(rig.until([&] { return rig.count(Counter::kReads) == 5; }));
}

/// The drive's late writes, played by a child process: a slot that is used again before the tombstone is
/// overwritten.
TEST(GhostBackend, LateWritesHitNoSlotInUse) {
  TinyModel model;
  Rig rig(model, 4, "ghost");
  ASSERT_TRUE(rig.start().ok());
  ASSERT_TRUE(rig.load_dense());
  rig.touch(0, {0, 1, 2, 3});
  // No poll takes a completion in that it asked for itself: so here all four are being filled.
  while (rig.in_state(SlotState::kFilling) < 4) rig.loader().poll();
  ASSERT_EQ(rig.in_state(SlotState::kFilling), 4u);
  std::uint32_t poisoned = 0;
  rig.at().plan.options.io = "pread";
  const Fd tombstone(::dup(rig.tombstone()));
  ASSERT_TRUE(rig.start().ok());
  poisoned = rig.in_state(SlotState::kFilling);
  EXPECT_EQ(poisoned, 4u);
  rig.touch(0, {0, 1, 2, 3}, ring::kTouchAgain);
  std::map<std::uint32_t, Seen> held;
  bool hung_up = false;
  ASSERT_TRUE(rig.until([&] {
    pollfd p{tombstone.get(), POLLIN, 0};
    if (!hung_up && ::poll(&p, 1, 0) > 0 && (p.revents & POLLHUP) != 0) {
      hung_up = true;
      rig.drained(1);
    }
    for (const Seen& s : rig.take(true)) held[s.key] = s;
    return hung_up && held.size() == 4;
  }));
  for (const auto& [key, s] : held)
    EXPECT_TRUE(rig.intact(s.slot)) << "slot " << s.slot << " was overwritten";
}

}  // namespace
}  // namespace wisp::loader
