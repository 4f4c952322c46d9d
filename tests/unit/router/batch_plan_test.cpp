#include "services/router/batch_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "journal_memory.hpp"

namespace wisp::router {
namespace {

using shm::Finish;

constexpr std::uint32_t kPages = 4096;

/// What a step says, read as compute reads it.
struct ReadStep {
  ring::StepHeader header;
  struct Part {
    ring::StepRequest request;
    std::vector<std::uint32_t> ids, pages;
  };
  std::vector<Part> parts;
  explicit ReadStep(std::span<const std::byte> in) {
    const auto take = [&](void* to, std::size_t n) {
      ASSERT_LE(n, in.size());
      std::memcpy(to, in.data(), n);
      in = in.subspan(n);
    };
    take(&header, sizeof header);
    for (std::uint32_t i = 0; i < header.requests; ++i) {
      Part p;
      take(&p.request, sizeof p.request);
      p.ids.resize(p.request.count);
      p.pages.resize(p.request.pages);
      take(p.ids.data(), p.ids.size() * 4);
      take(p.pages.data(), p.pages.size() * 4);
      if ((p.ids.size() + p.pages.size()) % 2 != 0) in = in.subspan(4);
      parts.push_back(std::move(p));
    }
    EXPECT_TRUE(in.empty());
  }
};

class BatchPlan : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRecords = 16, kCapacity = 4000;
  BatchPlan() { writer_.attach(memory_.get(), kPages, 1); }

  /// A sequence at work in record i; `generated` tokens of its answer are there, the last without its KV row.
  void sequence(std::uint32_t i, std::uint32_t prompt, std::uint32_t kv_len = 0,
                std::uint32_t generated = 0) {
    testing::open(writer_, i, ++requests_, prompt, 100);
    writer_.admit(i, std::vector<std::uint32_t>((prompt + 100 + 15) / 16, i));
    for (std::uint32_t t = 0; t < generated; ++t) writer_.commit_token(i, t, Finish::kNone, 1);
    writer_.set_kv_len(i, generated > 0 ? prompt + generated - 1 : kv_len);
  }
  /// The effect of a step whose rows all succeed.
  void computed(std::span<const PlannedRows> rows) {
    for (const PlannedRows& p : rows) {
      if (p.sample) writer_.commit_token(p.record, 7, Finish::kNone, 1);
      writer_.set_kv_len(p.record, p.start + p.count);
    }
  }
  static std::vector<PlannedRows> copy(std::span<const PlannedRows> rows) {
    return {rows.begin(), rows.end()};
  }

  testing::JournalMemory memory_{kRecords, kCapacity};
  JournalWriter writer_;
  std::uint64_t requests_ = 0;
};

TEST_F(BatchPlan, FreePagesAreWhatNoRecordNames) {
  testing::open(writer_, 0, 42, 5, 8);
  testing::open(writer_, 1, 43, 5, 8);
  writer_.admit(0, std::vector<std::uint32_t>{0, 5});
  BatchPlanner planner(writer_, {16, 16}, 4, 8);
  const auto pages = planner.free_pages();
  EXPECT_EQ(std::vector(pages.begin(), pages.end()), (std::vector<std::uint32_t>{1, 2, 3, 4, 6, 7}));
  writer_.finish(0, 0, Finish::kCancelled, 1);
  EXPECT_EQ(planner.free_pages().size(), 8u) << "a finished record waits for its gateway, not on its pages";
  writer_.recycle(0);
  EXPECT_EQ(planner.free_pages().size(), 8u);
}

TEST_F(BatchPlan, OnePromptAloneTakesTheWholeChunk) {
  sequence(3, 100);
  BatchPlanner planner(writer_, {64, 16}, 4, kPages);
  EXPECT_EQ(copy(planner.plan()), (std::vector<PlannedRows>{{3, 0, 64, false}}));
  computed(planner.plan());
  EXPECT_EQ(copy(planner.plan()), (std::vector<PlannedRows>{{3, 64, 36, true}}));
}

TEST_F(BatchPlan, BesideAStreamTheChunkIsShorter) {
  sequence(0, 5, 0, 1);
  sequence(1, 100);
  BatchPlanner planner(writer_, {64, 16}, 4, kPages);
  EXPECT_EQ(copy(planner.plan()), (std::vector<PlannedRows>{{0, 5, 1, true}, {1, 0, 16, false}}));
  writer_.finish(0, 1, Finish::kCancelled, 1);
  EXPECT_EQ(copy(planner.plan()), (std::vector<PlannedRows>{{1, 0, 64, false}}))
      << "cancelled, so in no plan";
}

TEST_F(BatchPlan, WhatShortPromptsLeaveGoesToTheOthers) {
  sequence(0, 1000);
  sequence(1, 5);
  sequence(2, 40);
  BatchPlanner planner(writer_, {64, 64}, 4, kPages);
  EXPECT_EQ(copy(planner.plan()),
            (std::vector<PlannedRows>{{0, 0, 30, false}, {1, 0, 5, true}, {2, 0, 29, false}}));
}

TEST_F(BatchPlan, MorePromptsThanRoomGoRound) {
  for (std::uint32_t i = 0; i < 5; ++i) sequence(i, 3);
  BatchPlanner planner(writer_, {2, 2}, 5, kPages);
  std::vector<std::uint32_t> order;
  for (int step = 0; step < 5; ++step) {
    for (const PlannedRows& p : planner.plan()) order.push_back(p.record);
    computed(planner.plan());
    planner.encode(0, 1);
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{0, 1, 2, 3, 0, 4, 1, 2, 3, 4}));
}

TEST(ChunkRule, ChunksFromTheDriveStayWhole) {
  plan::RunPlan p;
  p.prompt_chunk = 512;
  p.expert_extents = 256;
  p.slots = 255;
  EXPECT_EQ(chunk_rule(p).beside, 512u);
  p.slots = 256;
  EXPECT_EQ(chunk_rule(p).beside, 128u);
  EXPECT_EQ(chunk_rule(p).alone, 512u);
  p.prompt_chunk = 7;
  EXPECT_EQ(chunk_rule(p).beside, 7u);
}

/// Sequences come, are cancelled and end at random; of every step it holds that every stream has its row,
/// that the rows fit, go on where the sequence stands and are written as they were planned, that no prompt
/// waits longer than it may, and that room is left over only if nothing waits.
TEST_F(BatchPlan, RandomTraffic) {
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const auto alone = static_cast<std::uint32_t>(1 + random() % 70);
    const ChunkRule rule{alone, static_cast<std::uint32_t>(1 + random() % alone)};
    BatchPlanner planner(writer_, rule, kRecords, kPages);
    std::map<std::uint64_t, std::uint32_t> waited;  // request -> steps since its last row
    for (int step = 0; step < 200; ++step) {
      if (random() % 3 == 0)
        if (const int i = writer_.find_free(); i >= 0)
          sequence(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(1 + random() % 300));
      const auto lucky = static_cast<std::uint32_t>(random() % kRecords);
      if (writer_.in_use(lucky) && random() % 8 == 0) writer_.recycle(lucky);
      if (writer_.in_use(lucky) && random() % 40 == 0) writer_.set_kv_len(lucky, 0);  // KV rows are lost

      const auto rows = copy(planner.plan());
      EXPECT_EQ(rows, copy(planner.plan())) << "a plan changes nothing";
      EXPECT_EQ(planner.any(), !rows.empty());
      const auto of = [&](std::uint32_t i) {
        return std::find_if(rows.begin(), rows.end(), [i](const PlannedRows& p) { return p.record == i; });
      };
      std::uint32_t prompt_rows = 0, streams = 0, left = 0;
      for (std::uint32_t i = 0; i < kRecords; ++i) {
        const auto p = of(i);
        if (!writer_.in_use(i)) {
          EXPECT_TRUE(p == rows.end());
          continue;
        }
        const std::uint32_t start = writer_.at(i).kv_len.load(), missing = writer_.known(i) - start;
        const bool decodes = missing == 1 && writer_.committed(i).length > 0;
        const std::uint32_t count = p == rows.end() ? 0 : p->count;
        EXPECT_TRUE(p == rows.end() || p->start == start);
        EXPECT_TRUE(p == rows.end() || p->sample == (count == missing));
        EXPECT_LE(count, missing);
        streams += decodes ? 1 : 0;
        prompt_rows += decodes ? 0 : count;
        left += missing - count;
        EXPECT_TRUE(!decodes || count == 1) << "a stream was left out";
        auto& w = waited[writer_.at(i).request.load()];
        w = count > 0 ? 0 : w + 1;
        EXPECT_LT(w, (kRecords + rule.beside - 1) / rule.beside) << "record " << i << " starves";
      }
      const std::uint32_t room = streams > 0 ? rule.beside : rule.alone;
      EXPECT_LE(prompt_rows, room);
      EXPECT_TRUE(left == 0 || prompt_rows == room) << "room was left over";

      const ReadStep read(planner.encode(static_cast<std::uint64_t>(step), 9));
      EXPECT_EQ(read.header.step, static_cast<std::uint64_t>(step));
      EXPECT_EQ(read.header.kv_generation, 9u);
      EXPECT_EQ(read.header.rows, prompt_rows + streams);
      ASSERT_EQ(read.parts.size(), rows.size());
      for (std::size_t n = 0; n < rows.size(); ++n) {
        const ReadStep::Part& part = read.parts[n];
        EXPECT_EQ(part.request.record, rows[n].record);
        EXPECT_EQ(part.request.start, rows[n].start);
        EXPECT_EQ(part.request.sample, rows[n].sample ? 1u : 0u);
        EXPECT_GE(part.pages.size() * 16, rows[n].start + rows[n].count);
        for (std::uint32_t k = 0; k < rows[n].count; ++k)
          EXPECT_EQ(part.ids[k], writer_.ids(rows[n].record)[rows[n].start + k]);
      }
      computed(rows);
      for (std::uint32_t i = 0; i < kRecords; ++i)
        if (writer_.in_use(i) && writer_.committed(i).length >= 90) writer_.recycle(i);
      if (::testing::Test::HasFailure()) return;
    }
    for (std::uint32_t i = 0; i < kRecords; ++i)
      if (writer_.in_use(i)) writer_.recycle(i);
  }
}

}  // namespace
}  // namespace wisp::router
