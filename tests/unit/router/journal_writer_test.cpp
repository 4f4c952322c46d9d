#include "services/router/journal_writer.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "journal_memory.hpp"
#include "service/crash_point.hpp"
#include "services/router/batch_plan.hpp"

namespace wisp::router {
namespace {

using shm::CommitWord;
using shm::Finish;
using shm::Journal;

constexpr std::uint32_t kPages = 64;

class JournalTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRecords = 4, kCapacity = 256, kRoom = 3;
  JournalTest() { writer_.attach(journal(), kPages, 1); }
  Journal* journal() { return memory_.get(); }
  void open(std::uint32_t i, std::uint64_t request, std::uint32_t prompt, std::uint32_t max_tokens) {
    testing::open(writer_, i, request, prompt, max_tokens);
  }

  testing::JournalMemory memory_{kRecords, kCapacity, kRoom};
  JournalWriter writer_;
};

TEST_F(JournalTest, TokensAndFinishBecomeTrueTogether) {
  open(0, 42, 5, 3);
  writer_.commit_token(0, 100, Finish::kNone, 1);
  writer_.commit_token(0, 101, Finish::kStop, 2);
  EXPECT_EQ(writer_.committed(0).length, 2u);
  EXPECT_EQ(writer_.committed(0).finish, Finish::kStop);
  EXPECT_TRUE(shm::journal_record_valid(journal(), journal()->record(0), kPages));
  JournalWriter next;
  EXPECT_TRUE(next.attach(journal(), kPages, 1).empty());
  EXPECT_EQ(next.find(42), 0);
  EXPECT_EQ(next.ids(0)[5], 100u);
  EXPECT_EQ(next.ids(0)[6], 101u);
}

TEST_F(JournalTest, EarlierFinishTruncates) {
  open(0, 42, 5, 8);
  for (std::uint32_t t = 0; t < 6; ++t) writer_.commit_token(0, t, Finish::kNone, 1);
  writer_.set_kv_len(0, 10);
  writer_.finish(0, 3, Finish::kStopString, 9);
  EXPECT_EQ(writer_.committed(0).length, 3u);
  EXPECT_LE(writer_.at(0).kv_len.load(), 8u);
  EXPECT_TRUE(shm::journal_record_valid(journal(), journal()->record(0), kPages));
}

TEST_F(JournalTest, AnotherKvGenerationForgetsKvAndNothingElse) {
  open(0, 42, 5, 8);
  writer_.admit(0, std::vector<std::uint32_t>{3});
  writer_.commit_token(0, 7, Finish::kNone, 1);
  writer_.set_kv_len(0, 5);
  JournalWriter next;
  next.attach(journal(), kPages, 2);
  EXPECT_EQ(next.at(0).kv_len.load(), 0u);
  EXPECT_EQ(next.committed(0).length, 1u);
  BatchPlanner planner(next, {4, 4}, 1, kPages);
  const auto rows = planner.plan();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].count, 4u);  // in chunks again, although a token is committed
  EXPECT_FALSE(rows[0].sample);
}

TEST_F(JournalTest, DeathBetweenTokenAndCommitLeavesTheOldLength) {
  open(0, 42, 5, 8);
  writer_.commit_token(0, 7, Finish::kNone, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    service::detail::Armed armed;
    armed.point = static_cast<std::uint32_t>(service::CrashPoint::kTokenBeforeCommit);
    armed.countdown = 1;
    service::detail::armed = &armed;
    writer_.commit_token(0, 8, Finish::kNone, 1);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  JournalWriter next;
  EXPECT_TRUE(next.attach(journal(), kPages, 1).empty());
  EXPECT_EQ(next.committed(0).length, 1u);
}

/// Runs `action` in a child one instruction at a time. `look` sees a copy of the journal, as a successor
/// attaches to it, after each instruction that changed it: every place at which the writer may die.
class JournalStepTest : public JournalTest {
 protected:
  void step(const std::function<void()>& action, const std::function<void(JournalWriter&)>& look) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
      ::raise(SIGSTOP);
      action();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSTOPPED(status)) << "a child cannot be traced here";
    std::vector<std::uint64_t> seen(memory_.size() / 8), copy(seen.size());
    int changes = 0;
    while (WIFSTOPPED(status)) {
      if (std::memcmp(seen.data(), memory_.get(), memory_.size()) != 0) {
        std::memcpy(seen.data(), memory_.get(), memory_.size());
        copy = seen;
        JournalWriter next;
        const auto dropped = next.attach(reinterpret_cast<Journal*>(copy.data()), kPages, 1);
        EXPECT_TRUE(dropped.empty()) << dropped.front() << " after " << changes << " changes";
        look(next);
        ++changes;
      }
      if (::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) break;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_GT(changes, 1) << "nothing was seen to be written";
  }
};

TEST_F(JournalStepTest, ACommitIsTrueAtOnce) {
  open(0, 42, 5, 3);
  writer_.commit_token(0, 100, Finish::kNone, 1);
  bool old_seen = false, new_seen = false;
  step([this] { writer_.commit_token(0, 101, Finish::kStop, 2); },
       [&](JournalWriter& next) {
         const CommitWord c = next.committed(0);
         const bool is_new = c.length == 2 && c.finish == Finish::kStop && next.ids(0)[6] == 101;
         EXPECT_TRUE(is_new || (c.length == 1 && c.finish == Finish::kNone)) << "half a commit";
         EXPECT_TRUE(is_new || !new_seen);
         (is_new ? new_seen : old_seen) = true;
       });
  EXPECT_TRUE(old_seen && new_seen);
}

TEST_F(JournalStepTest, WhatIsToldOfATokenIsThereBeforeIt) {
  shm::RequestParams p;
  p.prompt_tokens = 1;
  p.max_tokens = 4;
  p.logprobs = kRoom;
  using Words = std::vector<std::uint32_t>;
  const Words before{1, 2, 3, 4, 5}, now{11, 12, 13, 14, 15, 21, 22, 23, 24, 25};
  writer_.open(0, 42, p, Words{9}, 1);
  writer_.commit_tokens(0, Words{100}, Finish::kNone, 1, before);
  bool new_seen = false;
  step(
      [&] {
        writer_.commit_tokens(0, Words{101, 102}, Finish::kNone, 2, now);
      },
      [&](JournalWriter& next) {
        const auto told = [&](std::uint32_t n, const Words& want) {
          const std::uint32_t* first = journal()->told(&next.at(0), n);
          EXPECT_EQ(Words(first, first + want.size()), want);
        };
        told(0, before);
        if (next.committed(0).length != 3) return;
        new_seen = true;
        told(1, now);  // the next room follows
      });
  EXPECT_TRUE(new_seen);
}

TEST_F(JournalStepTest, AnEarlierEndIsTrueAtOnce) {
  open(0, 42, 5, 8);
  for (std::uint32_t t = 0; t < 6; ++t) writer_.commit_token(0, t, Finish::kNone, 1);
  writer_.set_kv_len(0, 10);
  step([this] { writer_.finish(0, 3, Finish::kStopString, 9); },
       [](JournalWriter& next) {
         const CommitWord c = next.committed(0);
         const bool is_old = c.length == 6 && c.finish == Finish::kNone;
         EXPECT_TRUE(is_old || (c.length == 3 && c.finish == Finish::kStopString));
         EXPECT_LE(next.at(0).kv_len.load(), next.known(0)) << "rows that belong to nobody";
       });
}

TEST_F(JournalStepTest, ARecordIsOpenOrNotThere) {
  open(0, 42, 30, 8);
  writer_.recycle(0);
  step(
      [this] {
        open(0, 43, 5, 8);
        writer_.admit(0, std::vector<std::uint32_t>{3});
        writer_.recycle(0);
      },
      [](JournalWriter& next) {
        EXPECT_EQ(next.find(42), -1);
        if (next.find(43) < 0) return;
        EXPECT_EQ(next.known(0), 5u);
        EXPECT_EQ(next.ids(0)[4], 14u);
        if (next.at(0).admitted.load() != 0) {
          EXPECT_EQ(next.pages(0).size(), 1u);
          EXPECT_EQ(next.pages(0)[0], 3u);
        }
      });
}

TEST_F(JournalTest, OpeningCutShortIsNoRecord) {
  open(0, 42, 5, 8);
  auto* r = journal()->record(0);
  r->generation.store(r->generation.load() + 1);  // as a death inside open() leaves it
  JournalWriter next;
  next.attach(journal(), kPages, 1);
  EXPECT_EQ(next.find(42), -1);
  EXPECT_EQ(next.find_free(), 0);
}

/// Whatever bytes a record holds, attaching gives a valid record or none.
TEST_F(JournalTest, DamagedRecordsAreDropped) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 3000; ++round) {
    open(1, 43, 20, 30);
    writer_.admit(1, std::vector<std::uint32_t>{1, 2, 3, 4});
    for (std::uint32_t t = 0; t < 10; ++t) writer_.commit_token(1, t, Finish::kNone, 1);
    auto* r = reinterpret_cast<unsigned char*>(journal()->record(1));
    const std::size_t at = 16 + random() % (sizeof(shm::JournalRecord) + 60 * 4 - 16);
    r[at] = static_cast<unsigned char>(r[at] ^ (1u << random() % 8));
    JournalWriter next;
    next.attach(journal(), kPages, 1);
    for (std::uint32_t i = 0; i < kRecords; ++i)
      EXPECT_TRUE(!next.in_use(i) || shm::journal_record_valid(journal(), journal()->record(i), kPages));
    next.recycle(1);
  }
}

}  // namespace
}  // namespace wisp::router
