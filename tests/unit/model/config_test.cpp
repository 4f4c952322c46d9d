#include "model/config.hpp"

#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "model/family.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

using test::expect_error;

Result<ModelSpec> spec_of(const Json& config, const std::string& generation = "") {
  WISP_ASSIGN(const Config c, parse_config(config.dump(), generation));
  return c.family->describe(c);
}

class ConfigTest : public testing::Test {
 protected:
  ModelSpec spec() {
    auto s = spec_of(config_);
    EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().text);
    return s.ok() ? *s : ModelSpec{};
  }
  Json config_ = test::TinyCheckpoint(test::TinyCheckpoint::Experts::kInt4).config;
};

TEST_F(ConfigTest, PublishersForm) {
  const ModelSpec m = spec();
  EXPECT_EQ(m.family, "qwen3_moe");
  EXPECT_EQ(m.hidden, 64u);
  EXPECT_EQ(m.attention.heads, 2u);
  EXPECT_EQ(m.attention.head_dim, 16u);
  EXPECT_EQ(m.attention.qk_norm, QkNorm::kHead);
  EXPECT_FALSE(m.attention.qkv_bias);
  EXPECT_EQ(m.attention.rope.width, 16u);
  EXPECT_EQ(m.attention.rope.theta, 10000.0);
  EXPECT_EQ(m.router.experts, 4u);
  EXPECT_TRUE(m.router.renormalise);
  EXPECT_EQ(m.moe_layers(), 2u);
}

TEST_F(ConfigTest, TransformersFiveFormGivesTheSame) {
  const ModelSpec before = spec();
  config_.erase("torch_dtype");
  config_["dtype"] = "bfloat16";
  config_["num_local_experts"] = config_["num_experts"];
  config_.erase("num_experts");
  config_["rope_parameters"] = {{"rope_theta", config_["rope_theta"]}, {"rope_type", "default"}};
  config_.erase("rope_theta");
  config_["mlp_layer_types"] = {"sparse", "sparse"};
  config_["sliding_window"] = nullptr;
  const ModelSpec after = spec();
  EXPECT_EQ(after.attention.rope.theta, before.attention.rope.theta);
  EXPECT_EQ(after.router.experts, before.router.experts);
  EXPECT_EQ(after.moe_layers(), before.moe_layers());
}

TEST_F(ConfigTest, NestedTextConfig) {
  Json text = config_;
  text.erase("architectures");
  const Json outer{
      {"architectures", {"Qwen3MoeForCausalLM"}}, {"model_type", "some_wrapper"}, {"text_config", text}};
  const auto s = spec_of(outer);
  ASSERT_TRUE(s.ok()) << s.error().text;
  EXPECT_EQ(s->hidden, 64u);
}

TEST_F(ConfigTest, DefaultsOfTheFamily) {
  for (const char* key : {"norm_topk_prob", "rope_theta", "head_dim", "hidden_act"}) config_.erase(key);
  const ModelSpec m = spec();
  EXPECT_FALSE(m.router.renormalise);
  EXPECT_EQ(m.attention.rope.theta, 10000.0);
  EXPECT_EQ(m.attention.head_dim, 32u);
}

TEST_F(ConfigTest, SparseLayers) {
  config_["num_hidden_layers"] = 6;
  config_["decoder_sparse_step"] = 2;
  config_["mlp_only_layers"] = {3};
  const ModelSpec m = spec();
  const std::vector<bool> want{false, true, false, false, false, true};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(m.layers[i].moe, want[i]) << i;
  EXPECT_EQ(m.layers[0].dense_width, 48u);
  config_["mlp_layer_types"] = {"dense", "sparse", "sparse", "sparse", "sparse", "sparse"};
  EXPECT_EQ(spec().moe_layers(), 5u);
}

TEST_F(ConfigTest, Yarn) {
  config_["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  const ModelSpec m = spec();
  ASSERT_TRUE(m.attention.rope.yarn);
  EXPECT_EQ(m.attention.rope.yarn->factor, 4.0);
  EXPECT_EQ(m.attention.rope.yarn->original_length, 32.0);
  EXPECT_EQ(m.attention.rope.yarn->beta_fast, 32.0);
  config_["rope_scaling"].erase("factor");
  config_["rope_scaling"]["beta_fast"] = 0;
  EXPECT_EQ(spec().attention.rope.yarn->factor, 4.0) << "128 / 32";
  EXPECT_EQ(spec().attention.rope.yarn->beta_fast, 32.0);
}

TEST_F(ConfigTest, Llama3) {
  config_["rope_scaling"] = {{"rope_type", "llama3"},
                             {"factor", 8.0},
                             {"original_max_position_embeddings", 32},
                             {"low_freq_factor", 1.5},
                             {"high_freq_factor", 4.5}};
  const ModelSpec m = spec();
  EXPECT_FALSE(m.attention.rope.yarn);
  ASSERT_TRUE(m.attention.rope.llama3);
  EXPECT_EQ(m.attention.rope.llama3->factor, 8.0);
  EXPECT_EQ(m.attention.rope.llama3->original_length, 32.0);
  EXPECT_EQ(m.attention.rope.llama3->low_turns, 1.5);
  EXPECT_EQ(m.attention.rope.llama3->high_turns, 4.5);
}

TEST_F(ConfigTest, Generation) {
  auto c = parse_config(
      config_.dump(), R"({"eos_token_id":[3,5],"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95})");
  ASSERT_TRUE(c.ok()) << c.error().text;
  EXPECT_TRUE(c->generation.sample);
  EXPECT_EQ(c->generation.eos, (std::vector<std::uint32_t>{3, 5}));
  EXPECT_EQ(c->generation.top_k, 20u);
  c = parse_config(config_.dump(), "");
  ASSERT_TRUE(c.ok());
  EXPECT_FALSE(c->generation.sample);
  EXPECT_EQ(c->generation.eos, std::vector<std::uint32_t>{3}) << "from config.json";
  const Json wrapper{{"architectures", config_["architectures"]}, {"eos_token_id", {3, 4}}};
  Json outer = wrapper;
  outer["text_config"] = config_;
  outer["text_config"].erase("eos_token_id");
  c = parse_config(outer.dump(), "");
  ASSERT_TRUE(c.ok()) << c.error().text;
  EXPECT_EQ(c->generation.eos, (std::vector<std::uint32_t>{3, 4})) << "from around text_config";
  expect_error(parse_config(config_.dump(), R"({"eos_token_id": 40})"),
               {"eos_token_id", "40", "vocab_size is 40"});
  expect_error(parse_config(config_.dump(), R"({"temperature": -1})"),
               {"generation_config.json", "temperature"});
}

struct Bad {
  const char* title;
  const char* key;  ///< a JSON pointer into the tiny int4 config
  Json value;
  std::vector<std::string> says;
};
class BadConfig : public testing::TestWithParam<Bad> {};

TEST_P(BadConfig, IsRefusedByName) {
  Json config = test::TinyCheckpoint(test::TinyCheckpoint::Experts::kInt4).config;
  config[Json::json_pointer(GetParam().key)] = GetParam().value;
  const auto s = spec_of(config);
  ASSERT_FALSE(s.ok());
  for (const auto& part : GetParam().says)
    EXPECT_NE(s.error().text.find(part), std::string::npos) << s.error().text;
}

constexpr const char* kWeights = "/quantization_config/config_groups/group_0/weights/";
std::string weights(const char* key) {
  return std::string(kWeights) + key;
}
const std::string kBits = weights("num_bits"), kGroup = weights("group_size"), kOrder = weights("actorder"),
                  kStrategy = weights("strategy"), kType = weights("type");

INSTANTIATE_TEST_SUITE_P(
    Table, BadConfig,
    testing::Values(
        Bad{"Architecture",
            "/architectures/0",
            "MixtralForCausalLM",
            {"MixtralForCausalLM", "supported: ", "Qwen3MoeForCausalLM"}},
        Bad{"ModelType", "/model_type", "deepseek_v3", {"deepseek_v3"}},
        Bad{"NoModelType", "/model_type", nullptr, {"model_type is missing"}},
        Bad{"Activation", "/hidden_act", "gelu", {"hidden_act gelu"}},
        Bad{"RopeType",
            "/rope_scaling",
            {{"rope_type", "dynamic"}, {"factor", 8.0}},
            {"rope_type dynamic", "supported: default, llama3, yarn"}},
        Bad{"Llama3Factor", "/rope_scaling", {{"rope_type", "llama3"}}, {"factor is missing"}},
        Bad{"Llama3Turns",
            "/rope_scaling",
            {{"rope_type", "llama3"},
             {"factor", 8.0},
             {"original_max_position_embeddings", 32},
             {"low_freq_factor", 4.0},
             {"high_freq_factor", 4.0}},
            {"high_freq_factor is not above low_freq_factor"}},
        Bad{"RopeTypeOld", "/rope_scaling", {{"type", "linear"}, {"factor", 8.0}}, {"rope_type linear"}},
        Bad{"RopeNew", "/rope_parameters", {{"rope_type", "longrope"}}, {"rope_type longrope"}},
        Bad{"RopeTypeless", "/rope_scaling", {{"factor", 8.0}}, {"rope_type is missing"}},
        Bad{"YarnFactor", "/rope_scaling", {{"rope_type", "yarn"}, {"factor", -2.0}}, {"factor is -2.0"}},
        Bad{"Theta", "/rope_theta", 0, {"rope_theta is 0"}},
        Bad{"Partial", "/partial_rotary_factor", 0.2, {"partial_rotary_factor rotates 3 of 16"}},
        Bad{"Method", "/quantization_config/quant_method", "quip", {"quant_method quip"}},
        Bad{"Format", "/quantization_config/format", "float-quantized", {"float-quantized"}},
        Bad{"Bits", kBits.c_str(), 8, {"int8 symmetric"}},
        Bad{"GroupSize", kGroup.c_str(), 16, {"group_size 16"}},
        Bad{"Order", kOrder.c_str(), "group", {"actorder group"}},
        Bad{"Strategy", kStrategy.c_str(), "channel", {"strategy channel"}},
        Bad{"Float", kType.c_str(), "float", {"float4"}},
        Bad{"Rotated", "/quantization_config/transform_config", {{"x", 1}}, {"transform_config"}},
        Bad{"Sliding", "/use_sliding_window", true, {"use_sliding_window true"}},
        Bad{"HiddenZero", "/hidden_size", 0, {"hidden_size is 0"}},
        Bad{"HiddenNegative", "/hidden_size", -64, {"hidden_size is -64"}},
        Bad{"HiddenHuge", "/hidden_size", 4000000000u, {"hidden_size is 4000000000"}},
        Bad{"HiddenText", "/hidden_size", "64", {"hidden_size is \"64\", not a whole number"}},
        Bad{"HiddenFraction", "/hidden_size", 64.5, {"hidden_size is 64.5"}},
        Bad{"HiddenMissing", "/hidden_size", nullptr, {"hidden_size is missing"}},
        Bad{"Layers", "/num_hidden_layers", 100000, {"num_hidden_layers is 100000"}},
        Bad{"Heads", "/num_attention_heads", 0, {"num_attention_heads is 0"}},
        Bad{"KvHeads",
            "/num_key_value_heads",
            3,
            {"num_attention_heads 2 is not a multiple of num_key_value_heads 3"}},
        Bad{"HeadDimOdd", "/head_dim", 15, {"head_dim is 15"}},
        Bad{"HeadDimHuge", "/head_dim", 1 << 20, {"head_dim"}},
        Bad{"TopK", "/num_experts_per_tok", 5, {"num_experts_per_tok 5 is more than num_experts 4"}},
        Bad{"Experts", "/num_experts", 0, {"num_experts is 0"}},
        Bad{"Width", "/moe_intermediate_size", -1, {"moe_intermediate_size is -1"}},
        Bad{"Vocab", "/vocab_size", 0, {"vocab_size is 0"}},
        Bad{"Eps", "/rms_norm_eps", -1.0, {"rms_norm_eps is -1"}},
        Bad{"LayerTypes", "/mlp_layer_types", {"sparse"}, {"mlp_layer_types has 1 entries"}},
        Bad{"LayerType", "/mlp_layer_types", {"sparse", "hash_moe"}, {"hash_moe"}},
        Bad{"Scoring",
            "/scoring_func",
            "sigmoid",
            {"scoring_func sigmoid", "qwen3_moe", "supported: softmax"}},
        Bad{"OnlyLayers", "/mlp_only_layers", {7}, {"mlp_only_layers names layer 7"}},
        Bad{"Stop", "/eos_token_id", 99, {"eos_token_id is 99", "vocab_size"}}),
    [](const auto& i) { return i.param.title; });

TEST(Config, NotANumberIsNamed) {
  std::string text = test::TinyCheckpoint().config.dump();
  const std::string good = "\"rms_norm_eps\":1e-06";
  for (const std::string bad : {"NaN", "Infinity", "1e999"}) {
    std::string t = text;
    t.replace(t.find(good), good.size(), "\"rms_norm_eps\":" + bad);
    expect_error(parse_config(t, ""), {"config.json", "not valid JSON"});
  }
  expect_error(parse_config(std::string(100000, '['), ""), {"nested deeper"});
  expect_error(parse_config("[]", ""), {"not a JSON object"});
}

TEST(Quant, EveryMethodAndItsSettings) {
  const auto read = [](const char* config) {
    return read_quant(Fields(Json{{"quantization_config", Json::parse(config)}}, "config.json"));
  };
  const auto gptq = read(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true})");
  ASSERT_TRUE(gptq.ok()) << gptq.error().text;
  EXPECT_EQ(gptq->method, QuantMethod::kGptq);
  EXPECT_EQ(gptq->group, 128u);
  EXPECT_TRUE(gptq->act_order);
  EXPECT_EQ(gptq->zero_offset, 1u);
  EXPECT_EQ(read(R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"})")
                ->zero_offset,
            0u);
  EXPECT_EQ(
      read(R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "format": "gptq_v2"})")->zero_offset, 0u);
  EXPECT_EQ(read(R"({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"})")->group,
            64u);
  EXPECT_EQ(read(R"({"quant_method": "awq", "bits": 4, "group_size": -1})")->group, 0u);
  EXPECT_EQ(read(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})")->method, QuantMethod::kFp8);
  for (const char* refused :
       {R"({"quant_method": "gptq", "bits": 8, "group_size": 128})",
        R"({"quant_method": "gptq", "bits": 4, "group_size": 48})",
        R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"})",
        R"({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"})",
        R"({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]})",
        R"({"quant_method": "fp8", "weight_block_size": [64, 64]})", R"({"quant_method": "fp8"})"}) {
    const auto r = read(refused);
    EXPECT_FALSE(r.ok()) << refused;
  }
}

}  // namespace
}  // namespace wisp::model
