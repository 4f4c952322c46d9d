#include <gtest/gtest.h>

#include "model/convert.hpp"
#include "model/convert_plan.hpp"
#include "model/manifest.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

const std::string kData = WISP_TEST_DATA;

TEST(ConvertProfile, FastIsTheDefaultOfMeasuredFamiliesWhereItIsAnotherProfile) {
  const test::TempFolder temp;
  const std::string pocket = kData + "/pocket-dictionary";
  ASSERT_TRUE(convert({pocket, temp.path("int4"), false, {}, {}}, {}).ok());
  const auto coded = load_manifest(temp.path("int4"));
  ASSERT_TRUE(coded.ok());
  EXPECT_EQ(coded->profile, "fast");
  EXPECT_EQ(coded->fast_measured_on, "pocket-dictionary");
  ASSERT_TRUE(convert({pocket, temp.path("bf16"), false, {}, {kernels::WeightFormat::kBf16, {}}}, {}).ok());
  const auto plain = load_manifest(temp.path("bf16"));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->profile, "exact") << "no product takes bytes";
  const std::string mixtral = kData + "/oracle/mixtral_gptq_act_order";
  EXPECT_EQ(plan_conversion(mixtral)->manifest.profile, "exact") << "a family that lost more than it may";
  const std::string gpt_oss = kData + "/oracle/gpt_oss_mxfp4";
  EXPECT_EQ(plan_conversion(gpt_oss)->manifest.profile, "exact") << "a family without a measurement";
}

}  // namespace
}  // namespace wisp::model
