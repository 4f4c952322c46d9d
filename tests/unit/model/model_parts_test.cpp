#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "model/convert.hpp"
#include "model/manifest.hpp"
#include "tiny_checkpoint.hpp"

/// Which of a checkpoint's tensors are the model: its own head or the embedding, and no part left out.
namespace wisp::model {
namespace {

using test::expect_error;
using test::TinyCheckpoint;

Manifest converted(const std::string& from, const std::string& to,
                   std::vector<std::string>* notes = nullptr) {
  const auto report = convert({from, to, false, {}}, {});
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().text);
  if (!report.ok()) return {};
  if (notes != nullptr) *notes = report->notes;
  auto m = load_manifest(to);
  EXPECT_TRUE(m.ok()) << (m.ok() ? "" : m.error().text);
  return m.ok() ? *std::move(m) : Manifest{};
}

/// A head that is stored is used and one that is not is the embedding, whatever the flag says or does not
/// say.
TEST(Head, IsWhatIsStored) {
  std::vector<std::uint64_t> own, shared;
  for (const Json& flag : {Json(true), Json(false), Json(nullptr)}) {
    for (const bool stored : {true, false}) {
      test::TempFolder temp;
      TinyCheckpoint tiny;
      tiny.config.erase("tie_word_embeddings");
      if (!flag.is_null()) tiny.config["tie_word_embeddings"] = flag;
      if (!stored) tiny.tensors.erase("lm_head.weight");
      tiny.write(temp.path("src"));
      const Manifest m = converted(temp.path("src"), temp.path("dst"));
      EXPECT_EQ(m.spec.tied_head, !stored) << flag;
      EXPECT_EQ(m.dense.contains("head"), stored) << flag;
      (stored ? own : shared).push_back(m.model_hash);
    }
  }
  EXPECT_EQ(own, std::vector<std::uint64_t>(3, own[0]));
  EXPECT_EQ(shared, std::vector<std::uint64_t>(3, shared[0]));
  EXPECT_NE(own[0], shared[0]);
}

/// No tensor of a family's may be missing, be it a bias, a sink, a scale or an expert: nothing is put in its
/// place.
TEST(Parts, NoneMayBeMissing) {
  std::size_t dropped = 0;
  for (const std::string name :
       {"deepseek_v3_published", "deepseek_v3_direct_q", "deepseek_v32_saved", "glm4_moe_published",
        "glm4_moe_lite_published", "glm_moe_dsa_published", "gpt_oss_published", "gpt_oss_mxfp4",
        "mixtral_published", "mixtral_gptq_act_order", "mixtral_awq", "olmoe_clip", "qwen2_moe_published",
        "tied_bias_f32", "fp8_bf16_scales", "int4_asymmetric"}) {
    test::TempFolder temp;
    const std::string source = test::oracle_checkpoint(temp, name);
    ASSERT_TRUE(estimate(source).ok()) << name;
    const auto all = test::read_tensors(source + "/model.safetensors");
    const Json config = Json::parse(test::read_file(source + "/config.json"));
    const auto layers = config["num_hidden_layers"].get<std::uint32_t>();
    const std::string last = "model.layers." + std::to_string(layers - 1) + ".";
    const std::string behind = "model.layers." + std::to_string(layers) + ".";
    for (const auto& [tensor, unused] : all) {
      // The last layer stands for the others, and expert 1 for all experts.
      const auto expert = tensor.find("experts.");
      const bool other = expert != std::string::npos && tensor.find("experts.1.") == std::string::npos &&
                         tensor[expert + 8] >= '0' && tensor[expert + 8] <= '9';
      const bool of_layer = tensor.starts_with("model.layers.");
      if (tensor.starts_with(behind) || other || (of_layer && !tensor.starts_with(last))) continue;
      if (tensor == "lm_head.weight" || tensor.ends_with(".weight_shape")) continue;  // not needed
      auto fewer = all;
      fewer.erase(tensor);
      test::write_file(source + "/model.safetensors", test::safetensors_bytes(fewer));
      const auto made = estimate(source);
      EXPECT_FALSE(made.ok()) << name << " without " << tensor;
      ++dropped;
    }
  }
  EXPECT_GT(dropped, 200u);
}

}  // namespace
}  // namespace wisp::model
