#include <gtest/gtest.h>

#include <random>
#include <set>

#include "rig.hpp"

/// Guesses, read into slots that the policy does not know.
namespace wisp::loader {
namespace {

using ring::expert_key;
using ring::Kind;
using slab::SlotState;
using stats::Counter;

constexpr std::uint32_t kLayers = 3, kExperts = 16;

class PrefetchTest : public ::testing::Test {
 protected:
  PrefetchTest() : PrefetchTest(8, 2) {}
  PrefetchTest(std::uint32_t slots, std::uint32_t for_guesses, std::uint32_t width = 96)
      : model_(width), rig_(model_, slots) {
    rig_.at().plan.prefetch_slots = for_guesses;
    stride_ = rig_.at().plan.stride;
  }
  void start() {
    faults_ = rig_.start_with_faults();
    ASSERT_TRUE(rig_.load_dense());
    ASSERT_TRUE(rig_.idle());
    dense_ = rig_.count(Counter::kDeviceBytesRead);
  }
  /// A touch whose answers are all taken; each must be there once, and whole.
  void touch(std::uint32_t layer, const std::vector<std::uint32_t>& experts) {
    rig_.touch(layer, experts);
    answers(layer, experts);
  }
  void answers(std::uint32_t layer, const std::vector<std::uint32_t>& experts) {
    std::multiset<std::uint32_t> keys, wanted;
    for (const std::uint32_t e : experts) wanted.insert(expert_key(layer, e));
    ASSERT_TRUE(rig_.until([&] {
      for (const Seen& s : rig_.take(true)) {
        EXPECT_EQ(s.kind, Kind::kSlotReady) << s.text;
        EXPECT_TRUE(rig_.intact(s.slot));
        keys.insert(s.key);
        rig_.release(s.slot);
      }
      return keys.size() >= wanted.size();
    }));
    EXPECT_EQ(keys, wanted);
  }
  /// Experts' worth of bytes that the drive was asked for since the start.
  std::uint64_t read() const { return (rig_.count(Counter::kDeviceBytesRead) - dense_) / stride_; }
  std::uint64_t useful() const { return rig_.count(Counter::kPrefetchUsefulBytes) / stride_; }
  std::uint64_t late() const { return rig_.count(Counter::kPrefetchLateBytes) / stride_; }
  std::uint64_t wasted() const { return rig_.count(Counter::kPrefetchWastedBytes) / stride_; }

  TinyModel model_;
  Rig rig_;
  FaultBackend* faults_ = nullptr;
  std::uint64_t stride_ = 0, dense_ = 0;
};

TEST_F(PrefetchTest, AGuessEvictsNothingAndIsThereWhenAskedFor) {
  start();
  touch(0, {0, 1, 2, 3});
  touch(1, {0, 1});  // all six slots of the cache
  rig_.guess(2, {5, 6, 7});
  ASSERT_TRUE(rig_.idle());
  EXPECT_EQ(read(), 8u) << "two slots, two guesses";
  EXPECT_EQ(rig_.count(Counter::kEvictions), 0u);
  for (const std::uint32_t e : {0u, 1u, 2u, 3u}) EXPECT_NE(rig_.slot_of(expert_key(0, e)), 0u);
  EXPECT_TRUE(rig_.take().empty()) << "nobody asked";
  EXPECT_EQ(rig_.count(Counter::kReads), 6u);

  touch(2, {9, 6, 5});
  EXPECT_EQ(read(), 9u) << "only the one that was not guessed";
  EXPECT_EQ(useful(), 2u);
  EXPECT_EQ(rig_.count(Counter::kDecodeHits), 0u) << "read ahead is no hit";
  EXPECT_EQ(rig_.count(Counter::kReads), 9u);
  EXPECT_EQ(rig_.count(Counter::kExpertBytesRead), 9 * stride_);
  EXPECT_EQ(rig_.count(Counter::kEvictions), 3u);
  // The slots of the victims take guesses now.
  rig_.guess(0, {10, 11});
  ASSERT_TRUE(rig_.idle());
  touch(0, {10, 11});
  EXPECT_EQ(useful(), 4u);
  EXPECT_EQ(wasted() + late(), 0u);
}

TEST_F(PrefetchTest, WhatIsInMemoryOrGuessedAlreadyIsNotReadAgain) {
  start();
  touch(0, {4, 5});
  rig_.guess(0, {4, 6});
  ASSERT_TRUE(rig_.idle());
  rig_.guess(0, {6, 5});
  ASSERT_TRUE(rig_.idle());
  EXPECT_EQ(read(), 3u);
  EXPECT_EQ(wasted(), 0u);
}

TEST_F(PrefetchTest, AWrongGuessGivesWayToTheNext) {
  start();
  rig_.guess(0, {1, 2});
  ASSERT_TRUE(rig_.idle());
  touch(0, {3, 4});
  rig_.guess(1, {7});
  ASSERT_TRUE(rig_.idle());
  EXPECT_EQ(wasted(), 1u);
  touch(1, {7});
  EXPECT_EQ(useful(), 1u);
  // The other one still lies there, and a later token may ask for it.
  touch(0, {2, 1});
  EXPECT_EQ(useful(), 2u);
  EXPECT_EQ(read(), 2u + 2u + 1u + 1u);
}

TEST_F(PrefetchTest, AGuessOnItsWayIsWaitedForNotReadTwice) {
  start();
  faults_->hold = true;
  rig_.guess(1, {3});
  ASSERT_TRUE(rig_.until([&] { return faults_->held.size() == 1; }));
  rig_.touch(1, {3, 4});
  ASSERT_TRUE(rig_.until([&] { return faults_->held.size() == 2; }));
  faults_->release();
  answers(1, {3, 4});
  EXPECT_EQ(read(), 2u);
  EXPECT_EQ(late(), 1u);
  EXPECT_EQ(rig_.count(Counter::kReads), 2u);
  EXPECT_EQ(rig_.count(Counter::kExpertBytesRead), 2 * stride_);
}

TEST_F(PrefetchTest, AGuessThatDemandOvertakesIsNotBegun) {
  start();
  rig_.guess(1, {3, 5});
  rig_.touch(1, {4});
  answers(1, {4});
  ASSERT_TRUE(rig_.idle());
  EXPECT_EQ(read(), 1u);
}

TEST_F(PrefetchTest, ABadReadOfAGuessIsToldToNobody) {
  start();
  faults_->spoil = [](const Read&, std::int64_t) -> std::int64_t { return -EIO; };
  rig_.guess(1, {3});
  ASSERT_TRUE(rig_.idle());
  EXPECT_EQ(rig_.count(Counter::kReadFailures), 0u);
  EXPECT_TRUE(rig_.take().empty());
  faults_->spoil = nullptr;
  touch(1, {3});
  EXPECT_EQ(useful() + late(), 0u);
}

TEST_F(PrefetchTest, ADeadLoaderLeavesItsGuessesToDrain) {
  start();
  touch(0, {0, 1, 2, 3});
  touch(1, {0, 1});
  rig_.guess(2, {5, 6});
  ASSERT_TRUE(rig_.idle());
  const std::uint32_t first = rig_.epoch();
  faults_ = rig_.start_with_faults();
  EXPECT_EQ(rig_.in_state(SlotState::kReady), 6u);
  EXPECT_EQ(rig_.count(Counter::kSlotsDraining), 2u);
  touch(2, {5, 6});
  EXPECT_EQ(useful(), 0u);
  rig_.guess(0, {8});
  ASSERT_TRUE(rig_.idle());
  EXPECT_EQ(read(), 10u) << "no slot for guesses yet";
  rig_.drained(first);
  ASSERT_TRUE(rig_.until([&] { return rig_.count(Counter::kSlotsDraining) == 0; }));
  rig_.guess(0, {8, 9});
  ASSERT_TRUE(rig_.idle());
  touch(0, {8, 9});
  EXPECT_EQ(useful(), 2u);
}

/// The same touches with guesses of any quality between them, and without: what the cache holds, hits and
/// evicts is the same.
TEST_F(PrefetchTest, TheCacheIsTheSameWithAndWithoutGuesses) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  start();
  Rig plain(model_, 6);
  ASSERT_TRUE(plain.start().ok());
  ASSERT_TRUE(plain.load_dense());
  const auto draw = [&] {
    std::set<std::uint32_t> set;
    while (set.size() < 2 + random() % 3)
      set.insert(static_cast<std::uint32_t>(random() % 4 == 0 ? random() % kExperts : random() % 5));
    return std::vector<std::uint32_t>(set.begin(), set.end());
  };
  const auto held = [](const Rig& r) {
    std::set<std::uint32_t> keys;
    for (std::uint32_t s = 0; s < r.slots(); ++s)
      if (r.word(s).state == SlotState::kReady) keys.insert(r.word(s).key);
    return keys;
  };
  for (std::uint32_t n = 0; n < 300; ++n) {
    const std::uint32_t layer = n % kLayers;
    const auto set = draw();
    if (random() % 4 != 0) {
      auto guess = random() % 2 == 0 ? set : draw();
      std::shuffle(guess.begin(), guess.end(), random);
      rig_.guess(layer, guess);
      if (random() % 2 == 0) {
        ASSERT_TRUE(rig_.idle(2));
      }
    }
    touch(layer, set);
    ASSERT_TRUE(rig_.idle(2));
    plain.touch(layer, set);
    std::size_t came = 0;
    ASSERT_TRUE(plain.until([&] { return (came += plain.take().size()) == set.size(); }));
    ASSERT_TRUE(plain.idle(2));
    ASSERT_EQ(held(rig_), held(plain)) << "after touch " << n;
  }
  EXPECT_EQ(rig_.count(Counter::kDecodeHits), plain.count(Counter::kDecodeHits));
  EXPECT_EQ(rig_.count(Counter::kEvictions), plain.count(Counter::kEvictions));
  EXPECT_EQ(rig_.count(Counter::kExpertBytesRead), plain.count(Counter::kExpertBytesRead));
  EXPECT_GT(useful() + late(), 50u);
}

/// Experts so large that only one guess is on its way at a time.
class WidePrefetchTest : public PrefetchTest {
 protected:
  WidePrefetchTest() : PrefetchTest(8, 2, 3072) {}
};

TEST_F(WidePrefetchTest, WhatWaitsIsGivenUpAtTheTouchAndWhatIsUnderWayMayStay) {
  start();
  faults_->hold = true;
  rig_.guess(1, {3, 5});
  ASSERT_TRUE(rig_.until([&] { return !faults_->held.empty(); }));
  ASSERT_TRUE(rig_.until([&] { return !rig_.loader().poll(); }));
  rig_.touch(1, {4});
  ASSERT_TRUE(rig_.until([&] { return rig_.count(Counter::kDecodeAccesses) == 1; }));
  faults_->release();
  answers(1, {4});
  ASSERT_TRUE(rig_.idle());
  EXPECT_LT(rig_.count(Counter::kDeviceBytesRead) - dense_, 3 * stride_)
      << "the second guess was read all the same";
  // Whatever became of the two, they can be asked for.
  touch(1, {3, 5});
}

}  // namespace
}  // namespace wisp::loader
