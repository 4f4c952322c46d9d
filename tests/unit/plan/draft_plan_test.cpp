#include "plan/draft_plan.hpp"

#include <gtest/gtest.h>

#include "plan/budget.hpp"
#include "shapes.hpp"

namespace wisp::plan {
namespace {

model::Manifest base(std::uint32_t layers, std::uint32_t positions) {
  model::Manifest m;
  m.spec.hidden = 256;
  m.spec.vocab = 4096;
  m.spec.max_positions = positions;
  m.spec.attention.heads = 4;
  m.spec.attention.kv_heads = 2;
  m.spec.attention.head_dim = 64;
  m.spec.attention.rope.width = 64;
  m.spec.layers.resize(layers);
  m.dense_bytes = 8 * kMiB;
  return m;
}

model::Manifest target() {
  model::Manifest m = base(8, 4096);
  m.name = "target";
  m.spec.router.experts = 32;
  m.spec.router.top_k = 4;
  m.spec.moe_width = 128;
  m.spec.expert.stride = 57344;
  return m;
}

model::Manifest draft(std::uint32_t positions = 4096) {
  model::Manifest m = base(2, positions);
  m.name = "draft";
  for (auto& layer : m.spec.layers) layer = {false, 1024};
  return m;
}

RunOptions options(std::uint64_t ram = kGiB) {
  RunOptions o;
  o.ram = ram;
  o.threads = 2;
  o.draft = "/models/small/";
  return o;
}

RunOptions plain_options(RunOptions o) {
  o.draft.clear();
  return o;
}

TEST(DraftPlan, IsATermOfTheBudget) {
  const model::Manifest m = target(), d = draft();
  const RunOptions o = options();
  const auto with = make_plan(m, o, kPlenty, &d);
  ASSERT_TRUE(with.ok()) << with.error().text;
  EXPECT_EQ(with->draft_bytes, lay_out_draft(d, *with).total());
  EXPECT_GT(with->draft_bytes, d.dense_bytes);
  EXPECT_NE(describe(*with).find("draft model small (--draft)"), std::string::npos) << describe(*with);
  const auto without = make_plan(m, plain_options(o), kPlenty);
  EXPECT_EQ(without->draft_bytes, 0u);
  EXPECT_EQ(describe(*without).find("draft"), std::string::npos);
  // Its memory and the table of its pages, nothing else.
  EXPECT_EQ(with->total() - with->draft_bytes - with->page_table_bytes,
            without->total() - without->page_table_bytes);
  EXPECT_NEAR(static_cast<double>(with->page_table_bytes - without->page_table_bytes),
              static_cast<double>(with->draft_bytes) / 512, 4096);
  EXPECT_GE(with->minimum_ram, without->minimum_ram + with->draft_bytes);
}

TEST(DraftPlan, TakesSlotsAndNotMoreThanTheBudget) {
  const model::Manifest m = target(), d = draft();
  RunOptions o = options();
  const std::uint64_t minimum = make_plan(m, o, kPlenty, &d)->minimum_ram;
  o.ram = minimum + 4 * kMiB;
  const auto plan = make_plan(m, o, kPlenty, &d);
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->total(), o.ram);
  const auto plain = make_plan(m, plain_options(o), kPlenty);
  EXPECT_GT(plain->slots, plan->slots);
  o.ram = minimum - 1;
  const auto refused = make_plan(m, o, kPlenty, &d);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().text.find("--draft"), std::string::npos) << refused.error().text;
}

TEST(DraftPlan, WhatIsTakenAtOnceMustBeFree) {
  const model::Manifest m = target(), d = draft();
  const auto plan = make_plan(m, options(), kPlenty, &d);
  ASSERT_TRUE(plan.ok()) << plan.error().text;
  const std::uint64_t at_once = region_bytes(*plan) + plan->draft_bytes;
  EXPECT_TRUE(make_plan(m, options(), at_once, &d).ok());
  EXPECT_FALSE(make_plan(m, options(), at_once - 1, &d).ok());
}

/// One pool for all places: the run's own, and a page for each sequence that lives.
TEST(DraftPlan, PagesAreAsManyAsTheRunsSequencesCanFill) {
  const model::Manifest m = target();
  RunOptions o = options();
  o.ctx = 1000;
  const auto plan = make_plan(m, plain_options(o), kPlenty);
  EXPECT_EQ(plan->kv_pages, 63u);
  const DraftPlan same = lay_out_draft(draft(), *plan);
  EXPECT_EQ(same.ctx, 1000u);
  EXPECT_EQ(same.kv_pages, 63u + 4u);
  EXPECT_EQ(same.places, plan->records);
  EXPECT_EQ(same.kv_page_bytes, draft().spec.kv_page_bytes(kernels::KvFormat::kF32));
  EXPECT_EQ(lay_out_draft(draft(100), *plan).ctx, 100u) << "its own window is shorter";
  EXPECT_EQ(lay_out_draft(draft(100), *plan).kv_pages, 4u * 7u) << "no more than four of them can fill";
  o.kv = "bf16";
  const auto halved = make_plan(m, plain_options(o), kPlenty);
  EXPECT_EQ(lay_out_draft(draft(), *halved).kv_bytes() * 2, same.kv_bytes());
}

/// A piece of a prompt is short where a row is dear, and pays for no buffers that it does not use.
TEST(DraftPlan, PiecesAreShortWhereRowsAreDear) {
  const auto plan = make_plan(target(), plain_options(options()), kPlenty);
  model::Manifest d = draft();
  const DraftPlan cheap = lay_out_draft(d, *plan);
  EXPECT_EQ(cheap.rows, 64u);
  model::DenseTensor matrix;
  matrix.tiled = true;
  matrix.rows = matrix.cols = 8192;  // 2^26 multiply-adds
  d.dense["head"] = matrix;
  EXPECT_EQ(lay_out_draft(d, *plan).rows, 64u) << "only the last row of a piece needs it, if any";
  d.dense["layers.0.ffn.up"] = matrix;
  EXPECT_EQ(lay_out_draft(d, *plan).rows, 16u);
  EXPECT_LT(lay_out_draft(d, *plan).scratch_bytes, cheap.scratch_bytes);
  for (int layer = 1; layer < 20; ++layer)
    d.dense[model::layer_tensor(static_cast<std::uint32_t>(layer), "ffn.up")] = matrix;
  EXPECT_EQ(lay_out_draft(d, *plan).rows, 8u) << "a proposal computes as many";
}

TEST(DraftPlan, ExpertsOfADraftAreAllResident) {
  const model::Manifest m = target();
  RunOptions o = options();
  const auto plan = make_plan(m, o, kPlenty, &m);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(lay_out_draft(m, *plan).expert_bytes, 8u * 32 * 57344);
}

TEST(DraftPlan, OffLeavesTheDraftAside) {
  const model::Manifest m = target(), d = draft();
  RunOptions o = options();
  o.speculate = "off";
  for (const model::Manifest* given : {&d, static_cast<const model::Manifest*>(nullptr)}) {
    const auto plan = make_plan(m, o, kPlenty, given);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->draft_bytes, 0u);
    EXPECT_TRUE(plan->options.draft.empty());
  }
}

/// A model's own head: a layer and its experts beside what a draft model has, and two tables if it holds
/// them.
TEST(DraftPlan, OfAModelsOwnHead) {
  model::Manifest m = target();
  add_head(m, 3 * kMiB, 106496);
  RunOptions o = plain_options(options());
  o.ctx = 1000;
  const auto plan = make_plan(m, o, kPlenty);
  ASSERT_TRUE(plan.ok()) << plan.error().text;
  const DraftPlan own = lay_out_draft_head(m, *plan, true), shared = lay_out_draft_head(m, *plan, false);
  EXPECT_EQ(own.dense_bytes, 3 * kMiB);
  EXPECT_EQ(own.expert_bytes, 32u * 106496u) << "all of them: it reads nothing while it works";
  EXPECT_EQ(own.table_bytes, 2u * 4096u * 256u * 2u);
  EXPECT_EQ(shared.table_bytes, 0u);
  EXPECT_EQ(own.total() - shared.total(), own.table_bytes);
  EXPECT_EQ(own.kv_pages, 63u + 4u);
  EXPECT_EQ(own.kv_page_bytes * m.spec.layers.size(), m.spec.kv_page_bytes(kernels::KvFormat::kF32));
  // What is joined lies in buffers of its own, and bytes of it where products take bytes.
  RunPlan work = *plan;
  work.profile = "fast";
  EXPECT_GT(lay_out_draft_head(m, work, false).scratch_bytes, shared.scratch_bytes);
  m.draft_head.front().spec.draft_head = false;
  EXPECT_EQ(shared.scratch_bytes - lay_out_draft_head(m, *plan, false).scratch_bytes,
            shared.rows * 2u * 256u * 4u)
      << "what is joined";
}

TEST(DraftPlan, NamesWhatIsWrongWithTheOptions) {
  const model::Manifest m = target(), none = draft(0);
  RunOptions o = options();
  o.draft.clear();
  for (const char* good : {"off", "auto", "1", "7"}) {
    o.speculate = good;
    EXPECT_TRUE(make_plan(m, o, kPlenty).ok()) << good;
  }
  for (const char* bad : {"", "0", "8", "9", "10", "-1", "on", "1 ", "AUTO"}) {
    o.speculate = bad;
    const auto plan = make_plan(m, o, kPlenty);
    ASSERT_FALSE(plan.ok()) << bad;
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalid);
    EXPECT_NE(plan.error().text.find("--speculate " + std::string(bad)), std::string::npos);
  }
  const auto plan = make_plan(m, options(), kPlenty, &none);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().text.find("--draft /models/small/"), std::string::npos);
}

}  // namespace
}  // namespace wisp::plan
