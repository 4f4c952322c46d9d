#include <gtest/gtest.h>

#include "plan/budget.hpp"
#include "plan/draft_plan.hpp"
#include "shapes.hpp"

/// When a model's own draft head drafts, and what the budget says of it.
namespace wisp::plan {
namespace {

/// 16 layers of 64 experts, and a head whose experts are twice as large each: an eighth of the model's.
model::Manifest with_head() {
  constexpr Shape kShape{"headed", 16, 0, 256, 4, 2, 64, 64, 4, 128, 4096, 4096, 64 * 4096, 8 * kMiB};
  model::Manifest m = make_manifest(kShape);
  add_head(m, kMiB, 128 * 4096);
  return m;
}

RunOptions options(std::uint64_t experts_ram = 0) {
  RunOptions o;
  o.threads = 2;
  o.ctx = 1024;
  o.experts_ram = experts_ram;
  return o;
}

RunPlan plan_of(const model::Manifest& m, const RunOptions& o) {
  auto p = make_plan(m, o, kPlenty);
  EXPECT_TRUE(p.ok()) << p.error().text;
  return std::move(p).value();
}

TEST(HeadPlan, IsATermOfTheBudget) {
  const model::Manifest m = with_head();
  const RunPlan p = plan_of(m, options());
  EXPECT_EQ(p.slots, p.expert_extents);
  EXPECT_EQ(p.hidden_page_bytes, 16u * 256 * 2);
  EXPECT_EQ(p.kv_page_bytes, m.spec.kv_page_bytes(p.kv_format) + p.hidden_page_bytes);
  EXPECT_EQ(p.hidden_at(), m.spec.kv_page_bytes(p.kv_format));
  EXPECT_EQ(p.head_bytes, lay_out_draft_head(m, p, false).total());
  EXPECT_GE(p.head_bytes, 64u * 128 * 4096);
  EXPECT_EQ(p.head_left, 0u);
  EXPECT_NE(describe(p).find("the model's draft head"), std::string::npos);

  RunOptions o = options();
  o.speculate = "off";
  const RunPlan plain = plan_of(m, o);
  EXPECT_EQ(plain.head_bytes, 0u);
  EXPECT_EQ(plain.hidden_page_bytes, 0u);
  EXPECT_EQ(plain.kv_page_bytes, m.spec.kv_page_bytes(plain.kv_format));
  EXPECT_EQ(describe(plain).find("draft head"), std::string::npos);
  EXPECT_GE(p.total(), plain.total() + p.head_bytes + p.kv_pages * p.hidden_page_bytes);
  EXPECT_GT(p.page_table_bytes, plain.page_table_bytes) << "the speculator has weights and pages in its own";
}

TEST(HeadPlan, DraftsWhereItCostsFewSlots) {
  const model::Manifest m = with_head();
  RunOptions o = options();
  const std::uint64_t all = plan_of(m, o).total();
  const std::uint64_t head = plan_of(m, o).head_bytes;
  // An eighth of the slots would go for it.
  o.ram = all - head - 64 * kMiB;
  const RunPlan few = plan_of(m, o);
  EXPECT_EQ(few.head_bytes, 0u);
  EXPECT_EQ(few.head_left, head + few.kv_pages * 16u * 256 * 2);
  EXPECT_LT(few.slots, few.expert_extents);
  EXPECT_NE(describe(few).find("are worth more as slots"), std::string::npos);
  o.speculate = "3";
  const RunPlan asked = plan_of(m, o);
  EXPECT_EQ(asked.head_bytes, head);
  EXPECT_LT(asked.slots, few.slots);
  EXPECT_LE(asked.total(), o.ram);
  o.ram = asked.minimum_ram;
  EXPECT_TRUE(make_plan(m, o, kPlenty).ok()) << "below its own least the head gives way";

  // A head of few bytes costs few.
  model::Manifest small = m;
  small.draft_head.front().spec.expert.stride = 8 * 4096;
  o.speculate = "auto";
  o.ram = all - head - 16 * kMiB;
  const RunPlan cheap = plan_of(small, o);
  EXPECT_NE(cheap.head_bytes, 0u);
  EXPECT_LT(cheap.slots, cheap.expert_extents);
}

TEST(HeadPlan, GivesWayWhereMemoryIsShort) {
  const model::Manifest m = with_head();
  RunOptions o = options();
  o.speculate = "off";
  o.ram = plan_of(m, o).minimum_ram;
  for (const char* k : {"auto", "3"}) {
    o.speculate = k;
    // Drafts have buffers beside the head.
    const auto least = make_plan(m, o, kPlenty);
    if (!least.ok()) o.ram += 2 * kMiB;
    const RunPlan p = plan_of(m, o);
    EXPECT_EQ(p.head_bytes, 0u) << k;
    EXPECT_NE(p.head_left, 0u) << k;
    EXPECT_NE(describe(p).find("find no room"), std::string::npos) << k;
  }
}

TEST(HeadPlan, LeavesDraftingToAnotherDraft) {
  model::Manifest m = with_head();
  model::Manifest draft = m;
  draft.draft_head.clear();
  draft.spec.layers.assign(2, model::LayerSpec{false, 512});
  RunOptions o = options();
  o.draft = "/models/small";
  const auto p = make_plan(m, o, kPlenty, &draft);
  ASSERT_TRUE(p.ok()) << p.error().text;
  EXPECT_EQ(p->head_bytes, 0u);
  EXPECT_EQ(p->head_left, 0u) << "nobody asked for it";
  RunOptions traced = options();
  traced.trace = "/tmp/t";
  EXPECT_EQ(plan_of(m, traced).head_bytes, 0u);
  m.draft_head.clear();
  const RunPlan none = plan_of(m, options());
  EXPECT_EQ(none.head_bytes + none.head_left + none.hidden_page_bytes, 0u);
}

}  // namespace
}  // namespace wisp::plan
