#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "rig.hpp"

namespace wisp::loader {
namespace {

using ring::expert_key;
using ring::Kind;
using shm::StageId;
using slab::SlotState;
using stats::Counter;

std::vector<std::uint32_t> first(std::uint32_t n) {
  std::vector<std::uint32_t> v(n);
  std::iota(v.begin(), v.end(), 0u);
  return v;
}

class StageTest : public testing::TestWithParam<std::string> {
 protected:
  TinyModel model_;
};

TEST_P(StageTest, DenseIsReadAndChecked) {
  Rig rig(model_, 4, GetParam());
  ASSERT_TRUE(rig.start().ok());
  ASSERT_TRUE(rig.load_dense());
  ASSERT_TRUE(rig.idle());
  EXPECT_GE(rig.count(Counter::kDeviceBytesRead), rig.at().plan.dense_bytes);
  // A second life finds it there and reads nothing.
  const std::uint64_t read = rig.count(Counter::kDeviceBytesRead);
  ASSERT_TRUE(rig.start().ok());
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.count(Counter::kDeviceBytesRead), read);
}

TEST_P(StageTest, TouchPassesThroughAnyNumberOfSlots) {
  for (const std::uint32_t slots : {2u, 3u, 5u, 8u, 16u, 40u}) {
    Rig rig(model_, slots, GetParam());
    ASSERT_TRUE(rig.start().ok());
    std::map<std::uint32_t, int> answers;
    rig.touch(1, first(16));
    ASSERT_TRUE(rig.until([&] {
      for (const Seen& s : rig.take(true)) {
        EXPECT_EQ(s.kind, Kind::kSlotReady);
        EXPECT_EQ(rig.word(s.slot).key, s.key);
        EXPECT_EQ(rig.word(s.slot).generation, s.gen);
        EXPECT_TRUE(rig.intact(s.slot));
        ++answers[s.key];
        rig.release(s.slot);
      }
      return answers.size() == 16;
    })) << slots
        << " slots";
    ASSERT_TRUE(rig.idle());
    EXPECT_TRUE(rig.take().empty());
    for (const auto& [key, n] : answers) EXPECT_EQ(n, 1) << ring::expert_of(key);
    EXPECT_EQ(rig.count(Counter::kReads), 16u);
    EXPECT_EQ(rig.count(Counter::kExpertBytesRead), 16 * rig.at().plan.stride);
    EXPECT_EQ(rig.count(Counter::kDecodeAccesses), 16u);
    EXPECT_EQ(rig.count(Counter::kDecodeHits), 0u);
    EXPECT_EQ(rig.count(Counter::kEvictions), slots < 16 ? 16 - slots : 0u);
  }
}

TEST_P(StageTest, HitsAreCountedAndAnswered) {
  Rig rig(model_, 8, GetParam());
  ASSERT_TRUE(rig.start().ok());
  std::size_t answers = 0;
  rig.touch(0, {1, 2, 3});
  ASSERT_TRUE(rig.until([&] { return (answers += rig.take().size()) == 3; }));
  // One leased without asking, one asked for, one new.
  const std::uint32_t held = rig.lease(expert_key(0, 1));
  ASSERT_NE(held, 0u);
  rig.touch(0, {1, 2, 9}, ring::kTouchDecode, {1});
  std::set<std::uint32_t> keys;
  ASSERT_TRUE(rig.until([&] {
    for (const Seen& s : rig.take()) keys.insert(s.key);
    return keys.size() == 2;
  }));
  rig.release(held - 1);
  EXPECT_EQ(keys, (std::set<std::uint32_t>{expert_key(0, 2), expert_key(0, 9)}));
  rig.touch(0, {1, 2}, 0);  // a prompt's
  answers = 0;
  ASSERT_TRUE(rig.until([&] { return (answers += rig.take().size()) == 2; }));
  rig.touch(0, {1, 2}, ring::kTouchDecode | ring::kTouchAgain);
  answers = 0;
  ASSERT_TRUE(rig.until([&] { return (answers += rig.take().size()) == 2; }));
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.count(Counter::kDecodeAccesses), 6u);
  EXPECT_EQ(rig.count(Counter::kDecodeHits), 2u);
  EXPECT_EQ(rig.count(Counter::kPrefillAccesses), 2u);
  EXPECT_EQ(rig.count(Counter::kPrefillHits), 2u);
  EXPECT_EQ(rig.count(Counter::kReads), 4u);
}

TEST_P(StageTest, NeedIsIdempotentAndStartsARead) {
  Rig rig(model_, 4, GetParam());
  ASSERT_TRUE(rig.start().ok());
  const std::uint32_t key = expert_key(2, 7);
  for (int i = 0; i < 3; ++i) rig.need(key);
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.take().size(), 1u);
  rig.need(key);
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.take().size(), 1u);
  EXPECT_EQ(rig.count(Counter::kReads), 1u);
  rig.need(expert_key(9, 0));
  rig.need(expert_key(0, 99));
  ASSERT_TRUE(rig.idle());
  const auto seen = rig.take();
  ASSERT_EQ(seen.size(), 2u);
  for (const Seen& s : seen) EXPECT_EQ(s.kind, Kind::kSlotFailed);
}

TEST_P(StageTest, LeasedSlotsAreNeverTaken) {
  Rig rig(model_, 3, GetParam());
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0, 1, 2});
  ASSERT_TRUE(rig.idle());
  ASSERT_EQ(rig.take(true).size(), 3u);
  const std::uint32_t first_slot = rig.slot_of(expert_key(0, 0)) - 1;
  const std::uint32_t second_slot = rig.slot_of(expert_key(0, 1)) - 1;
  // Members of the set go in their order, or live hits would hang on which read was faster: the second is
  // free to go, and the first is waited for.
  rig.release(second_slot);
  rig.need(expert_key(1, 5));
  ASSERT_TRUE(rig.until([&] { return rig.board()->waits_for_lease.load() == first_slot + 1; }));
  for (int i = 0; i < 100; ++i) rig.loader().poll();
  EXPECT_EQ(rig.in_state(SlotState::kReady), 3u);
  ASSERT_NE(rig.lease(expert_key(0, 1)), 0u);
  rig.release(first_slot);
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.word(first_slot).key, expert_key(1, 5));
  rig.take(true);
  // All leased: the loader names one and waits for it, and the contents stay.
  rig.need(expert_key(1, 6));
  ASSERT_TRUE(rig.until([&] { return rig.board()->waits_for_lease.load() != 0; }));
  for (int i = 0; i < 100; ++i) rig.loader().poll();
  const auto waits = static_cast<std::uint32_t>(rig.board()->waits_for_lease.load() - 1);
  EXPECT_EQ(rig.in_state(SlotState::kReady), 3u);
  EXPECT_TRUE(rig.intact(waits));
  EXPECT_EQ(rig.count(Counter::kLeaseWaits), 2u);
  EXPECT_FALSE(rig.loader().has_work());
  rig.release(waits);
  EXPECT_TRUE(rig.loader().has_work());
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.word(waits).key, expert_key(1, 6));
  EXPECT_EQ(rig.board()->waits_for_lease.load(), 0u);
  EXPECT_EQ(rig.take(true).size(), 1u);
}

TEST_P(StageTest, UnreadAnswersCountAsLeases) {
  Rig rig(model_, 2, GetParam());
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, first(6));
  ASSERT_TRUE(rig.until([&] { return rig.count(Counter::kReads) == 2; }));
  for (int i = 0; i < 200; ++i) rig.loader().poll();
  EXPECT_NE(rig.board()->waits_for_lease.load(), 0u);
  EXPECT_EQ(rig.count(Counter::kReads), 2u);
  std::size_t answers = 0;
  ASSERT_TRUE(rig.until([&] {
    for (const Seen& s : rig.take(true, 1)) {  // the test fails in take() if the slot is gone
      ++answers;
      rig.release(s.slot);
    }
    return answers == 6;
  }));
}

TEST_P(StageTest, CorruptExpertFailsAloneAndIsNamed) {
  const auto& extent = model_.manifest().experts[1].extents[4];
  const Fd file(::open(model_.expert_file(1).c_str(), O_RDWR));
  char byte;
  ASSERT_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(extent.offset + 100)), 1);
  byte = static_cast<char>(byte ^ 0x10);
  ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(extent.offset + 100)), 1);
  ASSERT_EQ(::fsync(file.get()), 0);
  Rig rig(model_, 4, GetParam());
  ASSERT_TRUE(rig.start().ok());
  rig.touch(1, {3, 4, 5});
  std::map<std::uint32_t, Seen> seen;
  ASSERT_TRUE(rig.until([&] {
    for (const Seen& s : rig.take()) seen[s.key] = s;
    return seen.size() == 3;
  }));
  EXPECT_EQ(seen[expert_key(1, 3)].kind, Kind::kSlotReady);
  EXPECT_EQ(seen[expert_key(1, 5)].kind, Kind::kSlotReady);
  const Seen& bad = seen[expert_key(1, 4)];
  EXPECT_EQ(bad.kind, Kind::kSlotFailed);
  for (const std::string& part :
       {std::string("layer 1, expert 4"), model_.manifest().experts[1].file,
        "offset " + std::to_string(extent.offset), std::string("checksum"), std::string("wisp verify")})
    EXPECT_NE(bad.text.find(part), std::string::npos) << part << " is not in: " << bad.text;
  EXPECT_EQ(rig.count(Counter::kChecksumFailures), 1u);
  EXPECT_EQ(rig.slot_of(expert_key(1, 4)), 0u);
  EXPECT_EQ(rig.in_state(SlotState::kFree), 2u);
}

TEST_P(StageTest, SleepsAndIsWoken) {
  Rig rig(model_, 3, GetParam());
  ASSERT_TRUE(rig.start().ok());
  // Memory that comes rings it.
  ASSERT_TRUE(rig.until([&] { return rig.loader().memory_settled(); }));
  std::atomic<bool> stop{false};
  std::jthread loader([&] { service::run_stage(rig.context(), rig.loader(), [&] { return stop.load(); }); });
  const std::uint64_t end = shm::monotonic_now() + 40'000'000'000ULL;
  for (int round = 0; round < 60; ++round) {
    rig.touch(static_cast<std::uint32_t>(round % 3), first(6));
    std::size_t answers = 0;
    while (answers < 6 && shm::monotonic_now() < end)
      for (const Seen& s : rig.take(true)) {
        EXPECT_TRUE(rig.intact(s.slot));
        ++answers;
        rig.release(s.slot);
      }
    ASSERT_EQ(answers, 6u) << "round " << round;
  }
  // At rest it sleeps and does not turn.
  const auto rests = [&] {
    const shm::Desk* desk = rig.desk(StageId::kLoader);
    return desk->parked.load() != 0 &&
           desk->waits_for.load() == static_cast<std::uint32_t>(shm::WaitFor::kWork);
  };
  while (!rests() && shm::monotonic_now() < end) std::this_thread::yield();
  ASSERT_TRUE(rests());
  const std::uint64_t loops = rig.count(Counter::kLoops);
  const std::uint64_t began = shm::monotonic_now();
  while (shm::monotonic_now() < began + 100'000'000ULL) std::this_thread::yield();
  EXPECT_LE(rig.count(Counter::kLoops) - loops, 2u);
  stop = true;
  rig.at().bell[shm::index(StageId::kLoader)].ring();
}

TEST_P(StageTest, WaitsWithoutSpinningForALease) {
  Rig rig(model_, 2, GetParam());
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0, 1});
  ASSERT_TRUE(rig.idle());
  const auto held = rig.take(true);
  ASSERT_EQ(held.size(), 2u);
  std::atomic<bool> stop{false};
  std::jthread loader([&] { service::run_stage(rig.context(), rig.loader(), [&] { return stop.load(); }); });
  rig.need(expert_key(0, 2));
  while (rig.board()->waits_for_lease.load() == 0) std::this_thread::yield();
  // At rest it looks again every 10 ms, so twenty turns take 200 ms or more; one that spins never takes as
  // long. Turns that still pin memory come first.
  const std::uint64_t limit = shm::monotonic_now() + 20'000'000'000ULL;
  bool rests = false;
  while (!rests && shm::monotonic_now() < limit) {
    const std::uint64_t loops = rig.count(Counter::kLoops);
    const std::uint64_t began = shm::monotonic_now();
    while (rig.count(Counter::kLoops) < loops + 20) std::this_thread::yield();
    rests = shm::monotonic_now() - began >= 100'000'000ULL;
  }
  EXPECT_TRUE(rests);
  rig.release(static_cast<std::uint32_t>(rig.board()->waits_for_lease.load() - 1));
  const std::uint64_t end = shm::monotonic_now() + 20'000'000'000ULL;
  std::size_t answers = 0;
  while (answers == 0 && shm::monotonic_now() < end) answers += rig.take().size();
  EXPECT_EQ(answers, 1u);
  stop = true;
  rig.at().bell[shm::index(StageId::kLoader)].ring();
}

INSTANTIATE_TEST_SUITE_P(Backends, StageTest, testing::Values("auto", "pread"),
                         [](const auto& instance) { return instance.param; });

TEST(StageFaults, FailedReadFailsOneExpert) {
  TinyModel model;
  Rig rig(model, 8);
  FaultBackend* faults = rig.start_with_faults();
  const std::uint64_t bad = model.manifest().experts[0].extents[2].offset;
  ASSERT_TRUE(rig.load_dense());
  faults->spoil = [&](const Read& r, std::int64_t n) -> std::int64_t {
    return r.offset <= bad && bad < r.offset + r.bytes ? -EIO : n;
  };
  rig.touch(0, {1, 2, 3});
  ASSERT_TRUE(rig.idle());
  std::map<std::uint32_t, Seen> seen;
  for (const Seen& s : rig.take()) seen[s.key] = s;
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[expert_key(0, 2)].kind, Kind::kSlotFailed);
  EXPECT_NE(seen[expert_key(0, 2)].text.find("layer 0, expert 2"), std::string::npos);
  // The neighbours as one read; then each by itself, and the bad one once more.
  EXPECT_EQ(rig.count(Counter::kReadRetries), 4u);
  EXPECT_EQ(rig.count(Counter::kReadFailures), 1u);
  // The drive recovers: asked again, it is read again.
  faults->spoil = nullptr;
  rig.need(expert_key(0, 2));
  ASSERT_TRUE(rig.idle());
  const auto again = rig.take();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].kind, Kind::kSlotReady);
}

TEST(StageFaults, FullEdgeKeepsAnswers) {
  TinyModel model;
  Rig rig(model, 4);
  ASSERT_TRUE(rig.start().ok());
  rig.touch(0, {0});
  ASSERT_TRUE(rig.idle());
  rig.take();
  constexpr std::size_t kNeeds = 1500;  // edge 6 holds 1024
  std::size_t asked = 0, answered = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t i = 0; i < kNeeds / 3; ++i, ++asked)
      rig.need(expert_key(99, 0));  // each is refused by name
    for (int i = 0; i < 200; ++i) rig.loader().poll();
  }
  EXPECT_FALSE(rig.loader().has_work());
  while (answered < asked) {
    const auto seen = rig.take();
    ASSERT_FALSE(seen.empty());
    for (const Seen& s : seen) EXPECT_EQ(s.kind, Kind::kSlotFailed);
    answered += seen.size();
    EXPECT_TRUE(answered == asked || rig.loader().has_work());
    for (int i = 0; i < 200; ++i) rig.loader().poll();
  }
  EXPECT_EQ(answered, asked);
  EXPECT_TRUE(rig.take().empty());
}

TEST(StageFaultsDeathTest, CorruptDenseTensorIsNamed) {
  TinyModel model;
  const auto& tensor = model.manifest().dense.at("norm");
  const Fd file(::open((model.folder() + "/" + model.manifest().dense_file).c_str(), O_RDWR));
  const char byte = 0x7f;
  ASSERT_EQ(::pwrite(file.get(), &byte, 1,
                     static_cast<off_t>(model.manifest().dense_file_offset + tensor.offset + 1)),
            1);
  ASSERT_EQ(::fsync(file.get()), 0);
  EXPECT_EXIT(
      {
        spdlog::set_default_logger(spdlog::stderr_logger_mt("death"));
        Rig rig(model, 4, "pread");
        if (!rig.start().ok()) std::_Exit(1);
        rig.load_dense();
        std::_Exit(2);
      },
      testing::ExitedWithCode(125), "tensor norm");
}

TEST(StageFaults, ModelOfAnotherPlanIsRefused) {
  TinyModel model;
  Rig rig(model, 4);
  rig.at().plan.dense_bytes += 4096;
  const Status s = rig.start();
  ASSERT_FALSE(s.ok());
}

}  // namespace
}  // namespace wisp::loader
