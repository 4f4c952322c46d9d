#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model_fixture.hpp"
#include "oracle_cases.hpp"
#include "oracle_checks.hpp"

/// What changes numbers knowingly: the `fast` profile, and weights that were rounded in conversion.
namespace wisp::compute {
namespace {

using kernels::KvFormat;
using kernels::WeightFormat;
using testing::Engine;
using testing::ids_of;
using testing::kData;
using testing::LoadedModel;

struct Rounded {
  const char* name;
  model::TargetFormats target;
  bool fast;
  float tolerance;  ///< of a row's largest logit: a few times what was measured
};

class RoundedForms : public ::testing::TestWithParam<Rounded> {
 protected:
  std::string folder_ = kData + "/oracle/" + GetParam().name;
  std::vector<std::uint32_t> ids_ = ids_of(folder_);
  std::unique_ptr<LoadedModel> model_ = LoadedModel::convert(folder_, GetParam().target);
};

TEST_P(RoundedForms, StaysCloseToTheOracle) {
  const std::vector<float> expected = testing::expected_logits(folder_);
  const std::size_t vocab = model_->manifest.spec.vocab;
  Engine engine(*model_, kernels::best_kernels(), 1, 128, 128, false, KvFormat::kF32, GetParam().fast);
  std::vector<float> shares;
  for (std::uint32_t p = 0; p < ids_.size(); ++p) {
    const std::vector<float> got = engine.rows(ids_, p, 1);
    shares.push_back(testing::share_off(got, expected.data() + p * vocab));
  }
  // Routers of random weights turn at near ties, and then a row is another row: the middle one says more.
  std::nth_element(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2),
                   shares.end());
  const float middle = shares[shares.size() / 2];
  std::printf("the middle position is off by %.4f of its largest logit\n", static_cast<double>(middle));
  EXPECT_GT(middle, 1e-5f);  // else nothing was rounded
  EXPECT_LT(middle, GetParam().tolerance);
}

TEST_P(RoundedForms, SameBitsInAnyChunks) {
  testing::expect_same_bits_in_chunks(*model_, ids_, KvFormat::kF32, GetParam().fast);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, RoundedForms,
    ::testing::Values(Rounded{"int4", {}, true, 0.15f}, Rounded{"int4_asymmetric", {}, true, 0.15f},
                      Rounded{"mixtral_gptq_act_order", {}, true, 0.15f},
                      Rounded{"gpt_oss_mxfp4", {}, true, 0.15f},
                      Rounded{"untied_bf16", {WeightFormat::kInt8, WeightFormat::kInt8}, false, 0.15f},
                      Rounded{"odd_sizes", {WeightFormat::kInt8, WeightFormat::kInt8}, true, 0.15f},
                      Rounded{"deepseek_v3_fp8", {WeightFormat::kInt8, WeightFormat::kInt8}, true, 0.15f}),
    [](const auto& form) { return std::string(form.param.name) + (form.param.fast ? "_fast" : ""); });

TEST(FastProfile, GreedyAnswersOfTheBundledModel) {
  auto m = LoadedModel::convert(kData + "/pocket-dictionary");
  std::ifstream in(kData + "/pocket-dictionary/reference.json");
  const auto reference = nlohmann::json::parse(in);
  std::size_t rows = 0, agree = 0;
  for (const auto& prompt : reference["prompts"]) {
    // Teacher-forced, so that one other choice does not hide what follows.
    std::vector<std::uint32_t> ids = prompt["input_ids"];
    const std::vector<std::uint32_t> want = prompt["output_ids"];
    Engine engine(*m, kernels::best_kernels(), 2, 512, 512, false, KvFormat::kF32, true);
    std::vector<float> logits = engine.prompt(ids, 512);
    for (const std::uint32_t next : want) {
      ++rows;
      agree +=
          static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()) == next;
      ids.push_back(next);
      logits = engine.rows(ids, static_cast<std::uint32_t>(ids.size()) - 1, 1);
    }
  }
  std::printf("%zu of %zu greedy choices agree\n", agree, rows);
  EXPECT_GE(static_cast<double>(agree), 0.98 * static_cast<double>(rows));
}

}  // namespace
}  // namespace wisp::compute
