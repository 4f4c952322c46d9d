#include <gtest/gtest.h>

#include "plan/run_plan.hpp"
#include "shapes.hpp"

/// Options that change bits: what they cost, and the hash that tells them apart.
namespace wisp::plan {
namespace {

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

}  // namespace
}  // namespace wisp::plan
