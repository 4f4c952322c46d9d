#include "plan/budget.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <regex>

#include "plan/run_plan.hpp"
#include "shapes.hpp"
#include "shm/journal.hpp"

/// What a plan takes of memory, and what it says where that is not enough.
namespace wisp::plan {
namespace {

TEST(Plan, TermsAddUpAndStayWithinTheBudget) {
  const auto plan = make_plan(make_manifest(kPocket), with_ram(512 * kMiB), kPlenty);
  ASSERT_TRUE(plan.ok()) << plan.error().text;
  EXPECT_EQ(plan->total(), plan->dense_bytes + std::uint64_t{plan->slots} * 57344 +
                               std::uint64_t{plan->kv_pages} * plan->kv_page_bytes + plan->scratch_bytes +
                               plan->journal_bytes + plan->desks_bytes + plan->page_table_bytes +
                               plan->process_bytes + plan->reserve_bytes);
  EXPECT_LE(plan->total(), 512 * kMiB);
  EXPECT_EQ(plan->slots, 256u) << "all experts fit";
  EXPECT_EQ(plan->ctx, 2048u);
  EXPECT_EQ(plan->kv_pages, 128u);
  EXPECT_EQ(plan->kv_page_bytes, 8u * 2 * 2 * 16 * 64 * 4);
  EXPECT_EQ(plan->records, 16u);
  EXPECT_EQ(plan->prompt_chunk, 512u);
  EXPECT_EQ(plan->threads, 2u);
  EXPECT_EQ(plan->ram_budget, 512 * kMiB);
}

/// Nothing where they are not asked for; else their room in each record, and what answers with them cost the
/// gateway and compute.
TEST(Plan, LogprobsAreInTheBudget) {
  const model::Manifest m = make_manifest(kPocket);
  RunOptions o = with_ram(kGiB);
  const auto plain = make_plan(m, o, kPlenty);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->journal_bytes, shm::journal_size(plain->records, plain->ctx));
  EXPECT_EQ(describe(*plain).find("--logprobs"), std::string::npos);
  for (const std::uint32_t most : {0u, 5u, 20u}) {
    o.logprobs = 1 + most;
    const auto plan = make_plan(m, o, kPlenty);
    ASSERT_TRUE(plan.ok()) << plan.error().text;
    const std::uint64_t room = std::uint64_t{plan->records} * plan->ctx * (1 + 2 * most) * 4;
    EXPECT_GE(plan->journal_bytes, plain->journal_bytes + room - plan->records * 4096);
    EXPECT_LE(plan->journal_bytes, plain->journal_bytes + room + plan->records * 4096);
    EXPECT_GT(plan->process_bytes, plain->process_bytes);
    EXPECT_GT(plan->scratch_bytes, plain->scratch_bytes);
    EXPECT_NE(describe(*plan).find("(--logprobs)"), std::string::npos);
    EXPECT_GE(plan->minimum_ram, plain->minimum_ram + room);
  }
  o.ram = plain->minimum_ram;
  const auto refused = make_plan(m, o, kPlenty);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("leaving out --logprobs"), std::string::npos) << refused.error().text;
  o.logprobs = 22;
  const auto wrong = make_plan(m, o, kPlenty);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().text, "--logprobs 21 is out of range: 0 to 20");
}

TEST(Plan, RefusesTooSmallABudgetWithAFigureThatWorks) {
  for (const Shape& s : {kPocket, kQwen30B, kDeepSeekV3, kDense}) {
    const model::Manifest m = make_manifest(s);
    const auto refused = make_plan(m, with_ram(8 * kMiB), kPlenty);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
    std::smatch figures;
    ASSERT_TRUE(std::regex_search(refused.error().text, figures,
                                  std::regex(R"(needs at least ([0-9.]+) (M|G)iB \(--ram ([0-9]+M)\))")))
        << refused.error().text;
    for (const std::string& figure : {figures[1].str() + figures[2].str(), figures[3].str()}) {
      const auto ram = parse_size(figure);
      ASSERT_TRUE(ram.ok());
      const auto plan = make_plan(m, with_ram(*ram), kPlenty);
      ASSERT_TRUE(plan.ok()) << figure << ": " << plan.error().text;
      EXPECT_LE(plan->total(), *ram);
    }
  }
}

TEST(Plan, MinimumIsExact) {
  const model::Manifest m = make_manifest(kPocket);
  const std::uint64_t minimum = make_plan(m, with_ram(kGiB), kPlenty)->minimum_ram;
  const auto plan = make_plan(m, with_ram(minimum), kPlenty);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->slots, 8u) << "twice top_k";
  EXPECT_EQ(plan->prompt_chunk, 16u);
  EXPECT_FALSE(make_plan(m, with_ram(minimum - 1), kPlenty).ok());
}

TEST(Plan, NeverExceedsAnyBudget) {
  for (const Shape& s : {kPocket, kQwen30B, kDeepSeekV3, kDense}) {
    const model::Manifest m = make_manifest(s);
    std::uint32_t slots = 0;
    for (std::uint64_t ram = 16 * kMiB; ram < (std::uint64_t{1} << 41); ram += ram / 7) {
      const auto plan = make_plan(m, with_ram(ram), kPlenty);
      if (!plan.ok()) continue;
      EXPECT_LE(plan->total(), ram) << s.name << " " << ram;
      EXPECT_LE(plan->slots, plan->expert_extents);
      EXPECT_GE(plan->slots, std::min(plan->expert_extents, 2 * s.top_k));
      EXPECT_GE(plan->prompt_chunk, 16u);
      EXPECT_LE(plan->minimum_ram, ram);
      if (plan->slots < plan->expert_extents) {
        EXPECT_GT(plan->total() + 2 * s.stride, ram) << "a slot's worth of memory is left unused";
      }
      slots = plan->slots;
    }
    EXPECT_EQ(slots, m.spec.expert_count()) << s.name << " fits 2 TiB";
  }
}

TEST(Plan, CountsBeyond32Bits) {
  const auto plan = make_plan(make_manifest(kDeepSeekV3), with_ram(kGiB * 1024), kPlenty);
  ASSERT_TRUE(plan.ok()) << plan.error().text;
  EXPECT_EQ(plan->slots, 58u * 256);
  EXPECT_EQ(plan->slab_bytes(), std::uint64_t{58 * 256} * 46153728);
  EXPECT_GT(plan->slab_bytes(), std::uint64_t{1} << 39);
  EXPECT_GT(plan->kv_bytes(), std::uint64_t{1} << 32);
}

TEST(Plan, WithoutRamTakesWhatTheModelCanUse) {
  const model::Manifest m = make_manifest(kPocket);
  RunOptions o = with_ram(0);
  const auto rich = make_plan(m, o, 64 * kGiB);
  ASSERT_TRUE(rich.ok());
  EXPECT_EQ(rich->slots, 256u);
  EXPECT_EQ(rich->ram_budget, rich->total());

  const std::uint64_t some = rich->minimum_ram + 10 * kMiB;
  const auto poor = make_plan(m, o, some);
  ASSERT_FALSE(poor.ok()) << "70 % of it is too little";
  EXPECT_NE(poor.error().text.find("70 %"), std::string::npos) << poor.error().text;
  const auto middle = make_plan(m, o, some * 10 / 7 + 100);
  ASSERT_TRUE(middle.ok());
  EXPECT_LE(middle->ram_budget, some + 100);
}

TEST(Plan, RefusesRegionsThatAreNotThere) {
  const auto plan = make_plan(make_manifest(kQwen30B), with_ram(16 * kGiB), 6 * kGiB);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kExhausted);
  EXPECT_NE(plan.error().text.find("6 GiB"), std::string::npos) << plan.error().text;
}

/// 400 MiB: what is taken at once would fit, the whole does not.
TEST(Plan, ACgroupHoldsTheWholePlan) {
  model::Manifest m = make_manifest(kQwen30B);
  m.dense_bytes = 64 * kMiB;
  RunOptions o = with_ram(500 * kMiB);
  o.ctx = 512;
  o.prompt_chunk = 512;
  o.parallel = 1;
  const auto free = make_plan(m, o, 8 * kGiB);
  ASSERT_TRUE(free.ok()) << free.error().text;
  ASSERT_GT(free->total(), 480 * kMiB);
  MemoryHere here(8 * kGiB);
  here.available = here.group_room = 475 * kMiB;
  here.group_limit = 480 * kMiB;
  ASSERT_LT(region_bytes(*free), here.available) << "no case for this test";
  const auto refused = make_plan(m, o, here);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  std::smatch way;
  ASSERT_TRUE(std::regex_search(refused.error().text, way,
                                std::regex("475 MiB free of 480 MiB; give --ram ([0-9]+M) or less")))
      << refused.error().text;
  o.ram = *parse_size(way[1]);
  EXPECT_TRUE(make_plan(m, o, here).ok());
  // A group of exactly the budget, in which this process is already; and one that others have filled.
  o.ram = 500 * kMiB;
  here.group_limit = 500 * kMiB;
  here.available = here.group_room = 498 * kMiB;
  EXPECT_TRUE(make_plan(m, o, here).ok());
  here.available = here.group_room = 470 * kMiB;
  EXPECT_FALSE(make_plan(m, o, here).ok());
  // The machine alone may find more than it says: only what is taken at once must be there.
  EXPECT_TRUE(make_plan(m, o, 470 * kMiB).ok());
  o.ram = 0;
  here.available = 8 * kGiB;
  EXPECT_TRUE(make_plan(m, o, here).ok()) << "70 % of what is free is what it always was";
}

TEST(Plan, TooSmallABudgetNamesTheOptionsThatSaveMost) {
  const model::Manifest m = make_manifest(kPocket);
  const auto way_out = [&](const std::function<void(RunOptions&)>& change) {
    RunOptions o = with_ram(24 * kMiB);
    change(o);
    const auto plan = make_plan(m, o, kPlenty);
    return plan.ok() ? "none is needed" : plan.error().text;
  };
  const std::string plain = way_out([](RunOptions&) {});
  EXPECT_NE(plain.find("; a shorter --ctx needs less"), std::string::npos) << plain;
  const std::string threads = way_out([](RunOptions& o) { o.threads = 999; });
  EXPECT_NE(threads.find("--threads 999; a smaller --threads"), std::string::npos) << threads;
  const std::string chunk = way_out([](RunOptions& o) { o.prompt_chunk = 1000000; });
  EXPECT_NE(chunk.find("a shorter --prompt-chunk"), std::string::npos) << chunk;
  const std::string parallel = way_out([](RunOptions& o) {
    o.parallel = 256;
    o.ctx = 512;
  });
  EXPECT_NE(parallel.find("; a smaller --parallel needs less"), std::string::npos) << parallel;
}

TEST(Plan, ExpertsRamSetsTheSlabOnly) {
  const model::Manifest m = make_manifest(kPocket);
  RunOptions o = with_ram(0);
  o.experts_ram = 40 * 57344 + 5;
  const auto plan = make_plan(m, o, 64 * kGiB);
  ASSERT_TRUE(plan.ok()) << plan.error().text;
  EXPECT_EQ(plan->slots, 40u);
  EXPECT_EQ(plan->prompt_chunk, 512u);
  o.experts_ram = 3 * 57344;
  const auto refused = make_plan(m, o, 64 * kGiB);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("--experts-ram 448K"), std::string::npos) << refused.error().text;
  o.experts_ram = 448 * 1024;
  EXPECT_EQ(make_plan(m, o, 64 * kGiB)->slots, 8u);
}

TEST(Plan, SoloNeedsLessThanFull) {
  RunOptions o = with_ram(kGiB);
  const std::uint64_t full = make_plan(make_manifest(kPocket), o, kPlenty)->minimum_ram;
  o.topology = "solo";
  EXPECT_LT(make_plan(make_manifest(kPocket), o, kPlenty)->minimum_ram, full);
}

}  // namespace
}  // namespace wisp::plan
