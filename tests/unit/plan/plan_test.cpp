#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <regex>
#include <set>

#include "plan/budget.hpp"
#include "plan/run_plan.hpp"
#include "plan/traffic.hpp"
#include "shm/journal.hpp"

namespace wisp::plan {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;
constexpr std::uint64_t kGiB = 1024 * kMiB;

struct Shape {
  const char* name;
  std::uint32_t layers, dense_layers, hidden, heads, kv_heads, head_dim, experts, top_k, moe_width, vocab,
      positions;
  std::uint64_t stride, dense_bytes;
};
constexpr Shape kPocket{"pocket", 8, 0, 256, 6, 2, 64, 32, 4, 128, 4096, 2048, 57344, 6 * kMiB};
constexpr Shape kQwen30B{"qwen3-30b", 48, 0, 2048, 32, 4, 128, 128, 8, 768, 151936, 40960, 2506752, 3 * kGiB};
// More than 2^32 bytes of experts in a layer, and more than 2^39 in all.
constexpr Shape kDeepSeekV3{"deepseek-v3", 61, 3,    7168,   128,    128,      128,
                            256,           8,  2048, 129280, 163840, 46153728, 18 * kGiB};
constexpr Shape kDense{"dense", 4, 4, 512, 8, 8, 64, 0, 0, 0, 32000, 4096, 0, 100 * kMiB};

model::Manifest make_manifest(const Shape& s) {
  model::Manifest m;
  m.name = s.name;
  m.dense_bytes = s.dense_bytes;
  m.model_hash = 42;
  m.spec.hidden = s.hidden;
  m.spec.vocab = s.vocab;
  m.spec.max_positions = s.positions;
  m.spec.moe_width = s.moe_width;
  m.spec.attention.heads = s.heads;
  m.spec.attention.kv_heads = s.kv_heads;
  m.spec.attention.head_dim = s.head_dim;
  m.spec.attention.rope.width = s.head_dim;
  m.spec.router.experts = s.experts;
  m.spec.router.top_k = s.top_k;
  m.spec.expert.stride = s.stride;
  m.spec.layers.resize(s.layers);
  for (std::uint32_t i = 0; i < s.dense_layers; ++i) m.spec.layers[i] = {false, 4 * s.hidden};
  return m;
}

RunOptions with_ram(std::uint64_t ram) {
  RunOptions o;
  o.ram = ram;
  o.threads = 2;
  return o;
}

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 44;

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

TEST(Plan, ProfilesByName) {
  const model::Manifest m = make_manifest(kPocket);
  RunOptions o = with_ram(kGiB);
  o.profile = "fast";
  const auto fast = make_plan(m, o, kPlenty);
  ASSERT_TRUE(fast.ok()) << fast.error().text;
  EXPECT_EQ(fast->profile, "fast");
  o.profile = "quick";
  EXPECT_EQ(make_plan(m, o, kPlenty).error().code, ErrorCode::kInvalid);
  o.profile = "auto";
  const auto exact = make_plan(m, o, kPlenty);
  EXPECT_EQ(exact->profile, "exact") << "a family without a measurement keeps it";
  EXPECT_NE(fast->profile_hash, exact->profile_hash);
  model::Manifest other = m;
  other.model_hash = 43;
  EXPECT_NE(exact->profile_hash, make_plan(other, o, kPlenty)->profile_hash);
  RunOptions roomy = with_ram(2 * kGiB);
  roomy.threads = 7;
  EXPECT_EQ(exact->profile_hash, make_plan(m, roomy, kPlenty)->profile_hash) << "sizes are no numerics";
}

TEST(Plan, TheManifestSaysWhatAutoIs) {
  model::Manifest m = make_manifest(kPocket);
  m.profile = "fast";
  m.fast_measured_on = "a-trained-model";
  m.spec.expert.gate.format = m.spec.expert.down.format = kernels::WeightFormat::kInt4;
  RunOptions o = with_ram(kGiB);
  const auto plan = make_plan(m, o, kPlenty);
  EXPECT_EQ(plan->profile, "fast");
  EXPECT_NE(plan->profile_reason.find("a-trained-model"), std::string::npos) << plan->profile_reason;
  o.profile = "exact";
  const auto asked = make_plan(m, o, kPlenty);
  EXPECT_EQ(asked->profile, "exact");
  EXPECT_EQ(asked->profile_reason, "asked for");
}

TEST(Plan, KvInBf16TakesHalfTheMemoryAndIsOtherNumerics) {
  const model::Manifest m = make_manifest(kQwen30B);
  RunOptions o = with_ram(64 * kGiB);
  const auto exact = make_plan(m, o, kPlenty);
  o.kv = "bf16";
  const auto half = make_plan(m, o, kPlenty);
  ASSERT_TRUE(exact.ok() && half.ok());
  EXPECT_EQ(exact->kv_format, kernels::KvFormat::kF32);
  EXPECT_EQ(half->kv_format, kernels::KvFormat::kBf16);
  EXPECT_EQ(exact->kv_bytes(), 2 * half->kv_bytes());
  EXPECT_LT(half->minimum_ram + half->kv_bytes(), exact->minimum_ram + 1) << "the page tables shrink too";
  EXPECT_NE(exact->profile_hash, half->profile_hash);
  EXPECT_NE(describe(*half).find("8192 tokens (--ctx) in bf16 (--kv)"), std::string::npos) << describe(*half);
}

TEST(Plan, NaivePrefillIsOtherNumericsAndPaysForItsScratch) {
  model::Manifest m = make_manifest(kDeepSeekV3);
  RunOptions o = with_ram(kGiB * 1024);
  o.prefill = "naive";
  const auto refused = make_plan(m, o, kPlenty);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  EXPECT_NE(refused.error().text.find("--prefill naive"), std::string::npos) << refused.error().text;
  EXPECT_NE(refused.error().text.find("deepseek-v3"), std::string::npos) << refused.error().text;
  model::AttentionSpec& a = m.spec.attention;
  a.head_dim = 192;
  a.rope.width = 64;
  a.latent.kv_rank = 512;
  a.latent.q_rank = 1536;
  a.latent.nope = a.latent.value = 128;
  const auto naive = make_plan(m, o, kPlenty);
  o.prefill = "absorbed";
  const auto absorbed = make_plan(m, o, kPlenty);
  ASSERT_TRUE(naive.ok() && absorbed.ok());
  EXPECT_TRUE(naive->naive_prefill);
  EXPECT_FALSE(absorbed->naive_prefill);
  EXPECT_NE(naive->profile_hash, absorbed->profile_hash);
  // Four heads' keys and values over 8192 positions and their matrices; little more for two threads.
  const std::uint64_t shared = 4 * 4 * (8192 * (192 + 128) + 512 * (128 + 128));
  EXPECT_GE(naive->scratch_bytes, absorbed->scratch_bytes + shared);
  EXPECT_LE(naive->scratch_bytes, absorbed->scratch_bytes + shared + 256 * 1024);
  EXPECT_NE(describe(*naive).find("naive (--prefill)"), std::string::npos) << describe(*naive);
  // 61 layers of 512 + 64 numbers.
  EXPECT_EQ(absorbed->kv_page_bytes, 16u * 2 * 70272);
  o.kv = "bf16";
  EXPECT_EQ(make_plan(m, o, kPlenty)->kv_page_bytes, 16u * 70272);
  o.prefill = "fast";
  EXPECT_EQ(make_plan(m, o, kPlenty).error().text, "--prefill fast is unknown: absorbed or naive");
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

TEST(Plan, SoloNeedsLessThanFull) {
  RunOptions o = with_ram(kGiB);
  const std::uint64_t full = make_plan(make_manifest(kPocket), o, kPlenty)->minimum_ram;
  o.topology = "solo";
  EXPECT_LT(make_plan(make_manifest(kPocket), o, kPlenty)->minimum_ram, full);
}

}  // namespace
}  // namespace wisp::plan
