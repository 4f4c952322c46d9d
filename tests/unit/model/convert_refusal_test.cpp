#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "expect_error.hpp"
#include "model/convert.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using test::TinyCheckpoint;
using Experts = TinyCheckpoint::Experts;

struct Refusal {
  const char* title;
  Experts experts;
  std::function<void(TinyCheckpoint&)> change;
  std::vector<std::string> says;
};

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, ByNameAndNothingStays) {
  test::TempFolder temp;
  TinyCheckpoint tiny(GetParam().experts);
  GetParam().change(tiny);
  tiny.write(temp.path("src"));
  const auto r = convert({temp.path("src"), temp.path("dst"), false, {}}, {});
  ASSERT_FALSE(r.ok());
  for (const auto& part : GetParam().says)
    EXPECT_NE(r.error().text.find(part), std::string::npos) << r.error().text;
  for (const auto& f : fs::directory_iterator(temp.path())) EXPECT_EQ(f.path().filename(), "src");
}

const std::string kExpert = "model.layers.1.mlp.experts.2.";
const std::string kAttention = "model.layers.1.self_attn.";

template <class T>
std::function<void(TinyCheckpoint&)> poke(std::string name, std::size_t element, T bits) {
  return [name = std::move(name), element, bits](TinyCheckpoint& c) {
    std::memcpy(c.at(name).data.data() + element * sizeof(T), &bits, sizeof(T));
  };
}
std::function<void(TinyCheckpoint&)> drop(std::string name) {
  return [name = std::move(name)](TinyCheckpoint& c) { ASSERT_EQ(c.tensors.erase(name), 1u); };
}
std::function<void(TinyCheckpoint&)> add(std::string name, std::string dtype,
                                         std::vector<std::uint64_t> shape) {
  return [=](TinyCheckpoint& c) { c.add(name, dtype, shape); };
}
std::function<void(TinyCheckpoint&)> set(std::string key, Json value) {
  return [=](TinyCheckpoint& c) { c.config[key] = value; };
}

INSTANTIATE_TEST_SUITE_P(
    Table, Refused,
    testing::Values(
        Refusal{"Unknown",
                Experts::kBf16,
                add("model.layers.0.mlp.shared_expert.up_proj.weight", "BF16", {32, 64}),
                {"model.layers.0.mlp.shared_expert.up_proj.weight", "not known to qwen3_moe"}},
        Refusal{"UnknownTop", Experts::kBf16, add("mtp.fc.weight", "BF16", {4, 4}), {"mtp.fc.weight"}},
        Refusal{"LayerTooMany",
                Experts::kBf16,
                add("model.layers.2.input_layernorm.weight", "BF16", {64}),
                {"model.layers.2.input_layernorm.weight", "num_hidden_layers is 2"}},
        Refusal{"ExpertTooMany",
                Experts::kBf16,
                add("model.layers.0.mlp.experts.4.up_proj.weight", "BF16", {32, 64}),
                {"experts.4.up_proj", "4 experts"}},
        Refusal{"BiasNotInConfig",
                Experts::kBf16,
                add(kAttention + "q_proj.bias", "BF16", {32}),
                {kAttention + "q_proj.bias", "no such bias"}},
        Refusal{
            "BiasMissing",
            Experts::kBf16,
            set("attention_bias", true),
            {"model.layers.0.self_attn.q_proj.bias is missing", "the config says that there is such a bias"}},
        Refusal{"ExpertBias",
                Experts::kBf16,
                add(kExpert + "up_proj.bias", "BF16", {32}),
                {kExpert + "up_proj.bias"}},
        Refusal{"NormMissing",
                Experts::kBf16,
                drop(kAttention + "q_norm.weight"),
                {kAttention + "q_norm.weight is missing"}},
        Refusal{"EmbedMissing",
                Experts::kBf16,
                drop("model.embed_tokens.weight"),
                {"model.embed_tokens.weight is missing"}},
        Refusal{"ExpertMissing",
                Experts::kBf16,
                drop(kExpert + "down_proj.weight"),
                {"down", "layer 1 expert 2", "missing"}},
        Refusal{"ScaleMissing",
                Experts::kInt4,
                drop(kExpert + "up_proj.weight_scale"),
                {kExpert + "up_proj.weight_packed", "weight_scale is missing"}},
        Refusal{"VocabMismatch",
                Experts::kBf16,
                set("vocab_size", 41),
                {"model.embed_tokens.weight", "BF16 [40, 64]", "[41, 64]", "vocab_size"}},
        Refusal{"HiddenMismatch", Experts::kBf16, set("hidden_size", 128), {"[40, 64]", "[40, 128]"}},
        Refusal{"WidthMismatch",
                Experts::kBf16,
                set("moe_intermediate_size", 16),
                {"gate_proj.weight", "[32, 64]", "[16, 64]"}},
        Refusal{"ExpertsMismatch",
                Experts::kBf16,
                set("num_experts", 5),
                {"mlp.gate.weight", "[4, 64]", "[5, 64]"}},
        Refusal{"ExpertsInAll",
                Experts::kBf16,
                [](TinyCheckpoint& c) {
                  c.config["num_hidden_layers"] = 1000;
                  c.config["num_experts"] = 16000;
                },
                {"16000000 experts in all"}},
        Refusal{"GroupMismatch",
                Experts::kInt4,
                [](TinyCheckpoint& c) {
                  c.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 64;
                },
                {"weight_scale", "[32, 2]", "[32, 1]"}},
        Refusal{"GroupDoesNotDivide",
                Experts::kInt4,
                [](TinyCheckpoint& c) {
                  c.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 128;
                },
                {"gate_proj.weight_scale", "[32, 2]", "[32, 1]"}},
        Refusal{"PackedWithoutConfig",
                Experts::kInt4,
                [](TinyCheckpoint& c) { c.config.erase("quantization_config"); },
                {"weight_packed", "no quantization_config"}},
        Refusal{"WeightShapeLies",
                Experts::kInt4,
                poke<std::uint64_t>(kExpert + "up_proj.weight_shape", 1, 65),
                {kExpert + "up_proj.weight_shape", "[32, 65]"}},
        Refusal{"ZeroPoints",
                Experts::kInt4,
                add(kExpert + "up_proj.weight_zero_point", "F32", {4, 2}),
                {kExpert + "up_proj.weight_zero_point", "does not belong"}},
        Refusal{"GroupIndex",
                Experts::kInt4,
                add(kExpert + "up_proj.weight_g_idx", "F32", {64}),
                {"weight_g_idx"}},
        Refusal{"InputScale",
                Experts::kBf16,
                add(kAttention + "q_proj.input_scale", "F32", {1}),
                {kAttention + "q_proj.input_scale", "not known to qwen3_moe"}},
        Refusal{"InputScaleOfAnExpert",
                Experts::kInt4,
                add(kExpert + "up_proj.input_scale", "F32", {1}),
                {kExpert + "up_proj.input_scale", "not known to qwen3_moe"}},
        Refusal{"CacheScale",
                Experts::kBf16,
                add(kAttention + "k_scale", "F32", {1}),
                {kAttention + "k_scale", "not known to qwen3_moe"}},
        Refusal{"ScaleOfAnotherKind",
                Experts::kBf16,
                add(kAttention + "o_proj.weight._scale", "F32", {1}),
                {kAttention + "o_proj.weight._scale", "not known to qwen3_moe"}},
        Refusal{"GlobalScale",
                Experts::kInt4,
                add(kExpert + "up_proj.weight_global_scale", "F32", {1}),
                {kExpert + "up_proj.weight_global_scale", "not known to qwen3_moe"}},
        Refusal{"ScaleBesidePlainWeights",
                Experts::kBf16,
                add(kAttention + "q_proj.weight_scale", "F32", {32, 1}),
                {kAttention + "q_proj.weight_scale", "does not belong"}},
        Refusal{"ScaleBesideAPlainExpert",
                Experts::kBf16,
                add(kExpert + "down_proj.weight_scale_inv", "F32", {1, 1}),
                {kExpert + "down_proj.weight_scale_inv", "does not belong"}},
        Refusal{"ScaleOfANorm",
                Experts::kBf16,
                add("model.norm.weight_scale", "F32", {1}),
                {"model.norm.weight_scale", "cannot be stored with scales"}},
        Refusal{"ScaleOfAFusedExpert",
                Experts::kFused,
                add("model.layers.1.mlp.experts.down_proj_scale_inv", "F32", {4, 1, 1}),
                {"experts.down_proj_scale_inv", "not known to qwen3_moe"}},
        Refusal{"DenseQuantised",
                Experts::kInt4,
                add(kAttention + "q_proj.weight_packed", "F32", {32, 8}),
                {kAttention + "q_proj.weight", "a second time, in packed form"}},
        Refusal{"MixedFormats",
                Experts::kBf16,
                add(kExpert + "up_proj.weight", "F32", {32, 64}),
                {kExpert + "up_proj.weight", "f32", "bf16", "mixed"}},
        Refusal{"PlainAndPacked",
                Experts::kInt4,
                add(kExpert + "up_proj.weight", "BF16", {32, 64}),
                {kExpert + "up_proj.weight", "a second time, in packed form"}},
        Refusal{"DenseDtype",
                Experts::kBf16,
                [](TinyCheckpoint& c) { c.at(kAttention + "q_proj.weight").dtype = "I16"; },
                {kAttention + "q_proj.weight", "dtype I16"}},
        Refusal{"ExpertDtype",
                Experts::kBf16,
                [](TinyCheckpoint& c) { c.at(kExpert + "up_proj.weight").dtype = "U16"; },
                {kExpert + "up_proj.weight", "dtype U16"}},
        Refusal{"HalfFused",
                Experts::kFused,
                drop("model.layers.1.mlp.experts.down_proj"),
                {"layer 1", "only one of"}},
        Refusal{"FusedTransposed",
                Experts::kFused,
                [](TinyCheckpoint& c) { c.at("model.layers.1.mlp.experts.down_proj").shape = {4, 32, 64}; },
                {"model.layers.1.mlp.experts.down_proj", "[4, 32, 64]", "[4, 64, 32]"}},
        Refusal{"FusedAndSplit",
                Experts::kFused,
                add(kExpert + "up_proj.weight", "BF16", {32, 64}),
                {"both fused and apart"}},
        Refusal{"NanInDense",
                Experts::kBf16,
                poke<std::uint16_t>(kAttention + "o_proj.weight", 77, 0x7fc0),
                {kAttention + "o_proj.weight", "element 77", "NaN or infinite"}},
        Refusal{"InfInVector",
                Experts::kBf16,
                poke<std::uint32_t>(kAttention + "k_norm.weight", 3, 0xff800000u),
                {kAttention + "k_norm.weight", "element 3"}},
        Refusal{"NanInExpert",
                Experts::kBf16,
                poke<std::uint16_t>(kExpert + "down_proj.weight", 2047, 0xffc1),
                {kExpert + "down_proj.weight", "element 2047"}},
        Refusal{"InfInHalf",
                Experts::kF16,
                poke<std::uint16_t>(kExpert + "gate_proj.weight", 5, 0x7c00),
                {kExpert + "gate_proj.weight", "element 5"}},
        Refusal{"NanInFused",
                Experts::kFused,
                poke<std::uint16_t>("model.layers.1.mlp.experts.gate_up_proj", 3 * 4096 + 9, 0x7f81),
                {"model.layers.1.mlp.experts.gate_up_proj", "element 12297"}},
        Refusal{"NanInScale",
                Experts::kInt4,
                poke<std::uint16_t>(kExpert + "up_proj.weight_scale", 7, 0x7f80),
                {kExpert + "up_proj.weight_scale", "element 7"}}),
    [](const auto& i) { return i.param.title; });

TEST(Convert, MissingConfigIsNamed) {
  test::TempFolder temp;
  fs::create_directories(temp.path("src"));
  test::expect_error(convert({temp.path("src"), temp.path("dst"), false, {}}, {}),
                     {"config.json", "no such file"});
}

/// A folder or a file of another container is refused as what it is, with a config beside it and without.
TEST(Convert, OtherContainersAreNamed) {
  for (const bool config : {true, false}) {
    test::TempFolder temp;
    fs::create_directories(temp.path("src"));
    test::write_file(temp.path("src/model-q4_0.gguf"), std::string("GGUF\3", 5));
    if (config) test::write_file(temp.path("src/config.json"), TinyCheckpoint().config.dump());
    test::expect_error(convert({temp.path("src"), temp.path("dst"), false, {}}, {}),
                       {"model-q4_0.gguf", "convert it to safetensors first"});
    test::expect_error(convert({temp.path("src/model-q4_0.gguf"), temp.path("dst"), false, {}}, {}),
                       {"model-q4_0.gguf: is a file", "safetensors"});
  }
}

}  // namespace
}  // namespace wisp::model
