#include <gtest/gtest.h>

#include <set>

#include "plan/budget.hpp"
#include "plan/run_plan.hpp"
#include "plan/traffic.hpp"
#include "shapes.hpp"
#include "shm/journal.hpp"

/// Context, chunk, slots, desks: the parts of a plan, and its description.
namespace wisp::plan {
namespace {

TEST(Plan, DefaultContextIsTheModelsUpTo8192) {
  EXPECT_EQ(make_plan(make_manifest(kQwen30B), with_ram(12 * kGiB), kPlenty)->ctx, 8192u);
  RunOptions o = with_ram(24 * kGiB);
  o.ctx = 40960;
  EXPECT_EQ(make_plan(make_manifest(kQwen30B), o, kPlenty)->ctx, 40960u);
  o.ctx = 40961;
  const auto plan = make_plan(make_manifest(kQwen30B), o, kPlenty);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalid);
  EXPECT_NE(plan.error().text.find("--ctx 40961"), std::string::npos);
}

TEST(Plan, TheChunkIsTheOneThatReadsLeast) {
  for (const Shape& s : {kPocket, kQwen30B, kDeepSeekV3}) {
    const model::Manifest m = make_manifest(s);
    const std::uint64_t bank = m.spec.expert_count() * s.stride;
    std::set<std::uint32_t> seen;
    for (std::uint64_t percent : {1, 2, 5, 10, 25, 50, 75, 100}) {
      RunOptions o = with_ram(s.dense_bytes + bank * percent / 100 + 64 * kMiB);
      o.ctx = 2048;
      const auto plan = make_plan(m, o, kPlenty);
      if (!plan.ok()) continue;
      seen.insert(plan->prompt_chunk);
      for (o.prompt_chunk = 16; o.prompt_chunk <= 512; o.prompt_chunk *= 2) {
        const auto other = make_plan(m, o, kPlenty);
        if (!other.ok()) continue;
        EXPECT_LE(expected_traffic(*plan).request(), expected_traffic(*other).request() * (1 + 1e-9))
            << s.name << " " << percent << " %: " << plan->prompt_chunk << " against " << o.prompt_chunk;
      }
    }
    // Experts of megabytes are worth a long chunk's buffers; the small model's own are smaller than its
    // rows'.
    EXPECT_TRUE(seen.contains(512) || s.stride < kMiB) << s.name;
  }
}

TEST(Plan, SaysWhatIsExpectedToBeRead) {
  RunOptions o = with_ram(6 * kGiB);
  const auto half = make_plan(make_manifest(kQwen30B), o, kPlenty);
  ASSERT_TRUE(half.ok()) << half.error().text;
  EXPECT_NE(describe(*half).find("reads: about "), std::string::npos) << describe(*half);
  const Traffic less = expected_traffic(*half);
  const double bank = 48.0 * 128 * 2506752;
  EXPECT_GT(less.prompt, 0.0);
  EXPECT_LT(less.prompt, bank);
  EXPECT_LT(less.token, bank / 16) << "of 128 experts 8 are chosen";
  const auto all = make_plan(make_manifest(kQwen30B), with_ram(64 * kGiB), kPlenty);
  EXPECT_EQ(expected_traffic(*all).request(), 0.0);
  EXPECT_EQ(describe(*all).find("reads: about "), std::string::npos);
}

TEST(Plan, ReadingAheadTakesAFewSlotsOfACacheThatIsNotWhole) {
  const model::Manifest m = make_manifest(kQwen30B);
  for (const std::uint64_t slots : {16u, 31u, 32u, 64u, 256u, 4096u, 6144u}) {
    RunOptions o = with_ram(0);
    o.experts_ram = slots * m.spec.expert.stride;
    const auto p = make_plan(m, o, 64 * kGiB);
    ASSERT_TRUE(p.ok()) << p.error().text;
    ASSERT_EQ(p->slots, slots);
    EXPECT_LE(p->prefetch_slots, slots / 32);
    EXPECT_EQ(p->prefetch_slots > 0, slots >= 32 && slots < m.spec.expert_count()) << slots;
    EXPECT_LE(p->prefetch_slots, 8u);
    EXPECT_EQ(p->cache_slots() + p->prefetch_slots, slots);
    o.prefetch = false;
    EXPECT_EQ(make_plan(m, o, kPlenty)->prefetch_slots, 0u);
  }
}

TEST(Plan, RefusesOptionsByName) {
  const model::Manifest m = make_manifest(kPocket);
  RunOptions parallel = with_ram(kGiB);
  parallel.parallel = 0;
  EXPECT_NE(make_plan(m, parallel, kPlenty).error().text.find("--parallel"), std::string::npos);
  RunOptions io = with_ram(kGiB);
  io.io = "tape";
  EXPECT_NE(make_plan(m, io, kPlenty).error().text.find("--io tape"), std::string::npos);
  RunOptions kv = with_ram(kGiB);
  kv.kv = "fp8";
  EXPECT_EQ(make_plan(m, kv, kPlenty).error().text, "--kv fp8 is unknown: f32 or bf16");
  RunOptions threads = with_ram(kGiB);
  threads.threads = 100000;
  EXPECT_NE(make_plan(m, threads, kPlenty).error().text.find("--threads"), std::string::npos);
}

TEST(Plan, DesksHoldWhatTravelsThroughThem) {
  RunOptions o = with_ram(64 * kGiB);
  o.ctx = 40960;
  o.parallel = 8;
  const auto plan = make_plan(make_manifest(kQwen30B), o, kPlenty);
  ASSERT_TRUE(plan.ok());
  const auto gateway = desk_plan(*plan, shm::StageId::kGateway);
  EXPECT_GE(gateway.arena_bytes[1], sizeof(shm::SubmitMessage) + 4 * std::uint64_t{plan->ctx});
  EXPECT_EQ(desk_plan(*plan, shm::StageId::kRouter).arena_bytes[2], 0u);
  EXPECT_EQ(desk_plan(*plan, shm::StageId::kRouter).extra_bytes, sizeof(shm::RouterBoard) + 8u * 32);
  EXPECT_EQ(desk_plan(*plan, shm::StageId::kCompute).extra_bytes, 8u * plan->slots);
  EXPECT_GE(desk_plan(*plan, shm::StageId::kRouter).arena_bytes[3], 4u * (plan->kv_pages + 512) * 4);
  std::uint64_t desks = 0;
  for (shm::StageId s : shm::kRunningStages) desks += shm::desk_size(s, desk_plan(*plan, s));
  EXPECT_GT(plan->desks_bytes, desks);
}

TEST(Plan, DescriptionNamesEachTermLargestFirst) {
  const auto plan = make_plan(make_manifest(kQwen30B), with_ram(12 * kGiB), kPlenty);
  const std::string text = describe(*plan);
  EXPECT_LT(text.find("experts:"), text.find("weights beside"));
  EXPECT_NE(text.find("of 12 GiB allowed"), std::string::npos) << text;
  EXPECT_NE(text.find("page tables"), std::string::npos);
}

}  // namespace
}  // namespace wisp::plan
