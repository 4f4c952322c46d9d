#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "../model/tiny_checkpoint.hpp"
#include "model_fixture.hpp"
#include "wisp/kernels/number.hpp"

/// Experts of few bits: under every kind of router, and in answers that must end.
namespace wisp::compute {
namespace {

using model::test::TinyTensor;
using testing::Engine;
using testing::LoadedModel;

const std::string kData = WISP_TEST_DATA;

using Tensors = std::map<std::string, TinyTensor>;

template <class T>
void append(std::vector<std::uint8_t>& to, T value) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

/// A matrix of bf16 in groups of 32, as compressed-tensors packs it: codes, scale, shape. `exact` becomes the
/// numbers that these stand for.
void pack(const TinyTensor& from, const std::string& module, Tensors& packed, TinyTensor& exact) {
  const std::uint64_t rows = from.shape[0], cols = from.shape[1], groups = (cols + 31) / 32;
  TinyTensor codes{"I32", {rows, (cols + 7) / 8}, {}}, scales{"BF16", {rows, groups}, {}};
  exact = {"F32", from.shape, {}};
  for (std::uint64_t r = 0; r < rows; ++r) {
    std::vector<std::uint32_t> words((cols + 7) / 8);
    for (std::uint64_t g = 0; g < groups; ++g) {
      const std::uint64_t end = std::min(cols, g * 32 + 32);
      const auto weight = [&](std::uint64_t c) {
        return kernels::plain_to_float(kernels::WeightFormat::kBf16, from.data.data() + (r * cols + c) * 2);
      };
      float largest = 0.0f;
      for (std::uint64_t c = g * 32; c < end; ++c) largest = std::max(largest, std::abs(weight(c)));
      std::uint32_t bits;
      const float wide = largest / 7.0f;
      std::memcpy(&bits, &wide, 4);
      const auto half = static_cast<std::uint16_t>(bits >> 16);
      const float scale = kernels::bf16_to_float(half);
      append(scales.data, half);
      for (std::uint64_t c = g * 32; c < end; ++c) {
        const float code = std::clamp(std::nearbyint(weight(c) / scale), -8.0f, 7.0f);
        words[c / 8] |= static_cast<std::uint32_t>(code + 8.0f) << (4 * (c % 8));
        append(exact.data, code * scale);
      }
    }
    for (const std::uint32_t w : words) append(codes.data, w);
  }
  packed[module + ".weight_packed"] = codes;
  packed[module + ".weight_scale"] = scales;
  TinyTensor shape{"I64", {2}, {}};
  append(shape.data, rows);
  append(shape.data, cols);
  packed[module + ".weight_shape"] = shape;
}

void write(const std::string& folder, const nlohmann::json& config, const Tensors& tensors) {
  std::filesystem::create_directories(folder);
  model::test::write_file(folder + "/config.json", config.dump());
  model::test::write_file(folder + "/model.safetensors", model::test::safetensors_bytes(tensors));
}

/// Experts of int4 give what the same numbers give in f32, in which the families are held to the reference:
/// with sigmoid routing as Kimi K2 publishes them, and with softmax.
class PackedExperts : public ::testing::TestWithParam<std::string> {};

TEST_P(PackedExperts, GiveWhatTheSameNumbersGiveInF32) {
  const std::string folder = kData + "/oracle/" + GetParam();
  auto config = nlohmann::json::parse(model::test::read_file(folder + "/config.json"));
  if (config["model_type"] == "deepseek_v3") config["model_type"] = "kimi_k2";
  config.erase("num_nextn_predict_layers");
  const std::string behind = "model.layers." + config["num_hidden_layers"].dump() + ".";
  Tensors packed, exact;
  for (const auto& [name, t] : model::test::read_tensors(folder + "/model.safetensors")) {
    if (name.starts_with(behind)) continue;
    if (name.find(".experts.") == std::string::npos) {
      packed[name] = exact[name] = t;
    } else {
      ASSERT_EQ(t.dtype, "BF16");
      pack(t, name.substr(0, name.rfind('.')), packed, exact[name]);
    }
  }
  testing::TempFolder temp;
  write(temp.path() / "exact", config, exact);
  config["quantization_config"] = nlohmann::json::parse(R"({"quant_method": "compressed-tensors",
      "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"], "config_groups": {"group_0": {
      "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
      "group_size": 32}}}})");
  write(temp.path() / "packed", config, packed);
  const auto a = LoadedModel::convert(temp.path() / "exact"),
             b = LoadedModel::convert(temp.path() / "packed");
  ASSERT_EQ(a->manifest.spec.expert.gate.format, kernels::WeightFormat::kF32);
  ASSERT_EQ(b->manifest.spec.expert.gate.format, kernels::WeightFormat::kInt4);
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < 48; ++i) ids.push_back(i * 37 % a->manifest.spec.vocab);
  Engine plain(*a, kernels::best_kernels(), 1, 64, 64), coded(*b, kernels::best_kernels(), 1, 64, 64);
  for (std::uint32_t p = 0; p < ids.size(); ++p) {
    const auto want = plain.rows(ids, p, 1), got = coded.rows(ids, p, 1);
    float largest = 0.0f, difference = 0.0f;
    for (std::size_t v = 0; v < want.size(); ++v) {
      largest = std::max(largest, std::abs(want[v]));
      difference = std::max(difference, std::abs(got[v] - want[v]));
    }
    ASSERT_LE(difference, 1e-4f * largest) << "position " << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PackedExperts,
                         ::testing::Values("deepseek_v3_published", "deepseek_v3_moonlight",
                                           "glm4_moe_published", "glm4_moe_lite_published",
                                           "glm_moe_dsa_published", "mixtral_published",
                                           "qwen2_moe_published", "olmoe_published"),
                         [](const auto& i) { return i.param; });

/// In whatever form the experts and the dense weights are, the bundled model's answers end where they should.
TEST(RoundedModel, AnswersEndAsTheReferenceDoes) {
  using kernels::WeightFormat;
  const auto reference =
      nlohmann::json::parse(model::test::read_file(kData + "/pocket-dictionary/reference.json"));
  for (const model::TargetFormats target :
       {model::TargetFormats{WeightFormat::kBf16, {}}, model::TargetFormats{WeightFormat::kInt8, {}},
        model::TargetFormats{{}, WeightFormat::kInt8}}) {
    const auto m = LoadedModel::convert(kData + "/pocket-dictionary", target);
    const auto& eos = m->manifest.generation.eos;
    std::size_t ended = 0, same = 0, prompts = 0;
    for (const auto& prompt : reference["prompts"]) {
      std::vector<std::uint32_t> ids = prompt["input_ids"];
      const std::vector<std::uint32_t> want = prompt["output_ids"];
      Engine engine(*m, kernels::best_kernels(), 2, 512, 512);
      std::vector<float> logits = engine.prompt(ids, 512);
      std::vector<std::uint32_t> got;
      while (got.size() < 2 * want.size() + 32) {
        got.push_back(
            static_cast<std::uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
        if (std::find(eos.begin(), eos.end(), got.back()) != eos.end()) break;
        ids.push_back(got.back());
        logits = engine.rows(ids, static_cast<std::uint32_t>(ids.size()) - 1, 1);
      }
      ended += std::find(eos.begin(), eos.end(), got.back()) != eos.end() ? 1 : 0;
      same += got == want ? 1 : 0;
      ++prompts;
    }
    EXPECT_EQ(ended, prompts) << "answers that do not end";
    EXPECT_EQ(same, prompts) << "other answers";
  }
}

}  // namespace
}  // namespace wisp::compute
