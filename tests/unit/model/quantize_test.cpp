#include "model/quantize.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "model/convert.hpp"
#include "model/manifest.hpp"
#include "tiny_checkpoint.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::model {
namespace {

using Group = std::array<float, 32>;
using Codes = std::array<std::uint8_t, 32>;

double error_of(const Group& w, const Codes& codes, float scale) {
  double error = 0.0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double off =
        static_cast<double>(w[i]) - static_cast<double>(static_cast<float>(codes[i] - 8) * scale);
    error += off * off;
  }
  return error;
}

TEST(Quantize, WeightsOnTheGridStayWhereTheyAre) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const float scale = kernels::bf16_to_float(static_cast<std::uint16_t>(0x3c00 + random() % 0x300));
    Group w;
    for (float& v : w) v = static_cast<float>(static_cast<int>(random() % 16) - 8) * scale;
    w[random() % 32] = -8.0f * scale;
    Codes codes;
    double error = 0.0;
    EXPECT_EQ(kernels::bf16_to_float(quantize_int4(w, codes.data(), error)), scale);
    EXPECT_EQ(error, 0.0);
  }
}

TEST(Quantize, IsBetterThanTheLargestWeightAlone) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  double searched = 0.0, plain = 0.0;
  for (int round = 0; round < 500; ++round) {
    Group w;
    for (float& v : w) v = normal(random);
    Codes codes;
    double error = 0.0;
    const float scale = kernels::bf16_to_float(quantize_int4(w, codes.data(), error));
    EXPECT_NEAR(error, error_of(w, codes, scale), 1e-5);
    searched += error;
    float largest = 0.0f;
    for (const float v : w) largest = std::max(largest, std::abs(v));
    const float step = largest / 7.0f;
    for (std::size_t i = 0; i < w.size(); ++i)
      codes[i] = static_cast<std::uint8_t>(std::clamp(std::nearbyint(w[i] / step), -8.0f, 7.0f) + 8.0f);
    plain += error_of(w, codes, step);
  }
  EXPECT_LT(searched, 0.8 * plain) << searched / plain;
}

TEST(Quantize, ZerosAndTinyWeights) {
  Codes codes;
  double error = 0.0;
  EXPECT_EQ(quantize_int4(Group{}, codes.data(), error), 0u);
  EXPECT_EQ(codes[7], 8);
  EXPECT_EQ(error, 0.0);
  Group tiny{};
  tiny[3] = 1e-44f;
  (void)quantize_int4(tiny, codes.data(), error);
  EXPECT_TRUE(std::isfinite(error));
}

TEST(Quantize, PlainExpertsBecomeInt4AndSayWhatItCost) {
  test::TempFolder temp;
  const std::string source = test::oracle_checkpoint(temp, "untied_bf16");
  const auto estimated = estimate(source, {kernels::WeightFormat::kInt4, {}});
  ASSERT_TRUE(estimated.ok()) << estimated.error().text;
  const auto report = convert({source, temp.path("out"), false, {}, {kernels::WeightFormat::kInt4, {}}}, {});
  ASSERT_TRUE(report.ok()) << report.error().text;
  EXPECT_EQ(report->bytes, estimated->bytes);
  EXPECT_NE(report->notes.back().find("rounding to int4"), std::string::npos);
  const auto m = load_manifest(temp.path("out"));
  ASSERT_TRUE(m.ok()) << m.error().text;
  EXPECT_EQ(m->spec.expert.gate.format, kernels::WeightFormat::kInt4);
  EXPECT_EQ(m->spec.expert.down.group, 32u);
}

TEST(Quantize, CodedExpertsAreRefused) {
  test::TempFolder temp;
  const auto refused = convert({test::oracle_checkpoint(temp, "gpt_oss_mxfp4"),
                                temp.path("out"),
                                false,
                                {},
                                {kernels::WeightFormat::kInt4, {}}},
                               {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("--experts int4 is for wider ones"), std::string::npos)
      << refused.error().text;
}

}  // namespace
}  // namespace wisp::model
