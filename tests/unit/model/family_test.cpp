#include "model/family.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "expect_error.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

using test::expect_error;

Result<ModelSpec> spec_of(const Json& config) {
  WISP_ASSIGN(const Config c, parse_config(config.dump(), ""));
  return c.family->describe(c);
}

/// The configs of all oracles, by folder.
std::vector<std::pair<std::string, Json>> oracle_configs() {
  std::vector<std::pair<std::string, Json>> out;
  for (const auto& f : std::filesystem::directory_iterator(std::string(WISP_TEST_DATA) + "/oracle"))
    if (f.is_directory())
      out.emplace_back(f.path().filename(), Json::parse(test::read_file(f.path() / "config.json")));
  return out;
}

/// Each config is read by its own family; under the type of another one it is refused, never guessed.
TEST(Family, ReadsItsOwnConfigsAndNoOthers) {
  std::set<std::string> met;
  for (const auto& [folder, config] : oracle_configs()) {
    SCOPED_TRACE(folder);
    const std::string type = config["model_type"], architecture = config["architectures"][0];
    const auto own = parse_config(config.dump(), "");
    ASSERT_TRUE(own.ok()) << own.error().text;
    EXPECT_EQ(own->family->model_type, type);
    met.insert(type);
    for (const Family* other : families()) {
      if (other->architectures[0] == architecture) continue;
      Json mixed = config;
      mixed["model_type"] = other->model_type;
      expect_error(parse_config(mixed.dump(), ""), {architecture, std::string(other->model_type)});
    }
  }
  met.insert("kimi_k2");  // tests/unit/compute has one
  for (const Family* f : families()) EXPECT_TRUE(met.contains(std::string(f->model_type))) << f->model_type;
}

/// A router that scores in another way than its family does is refused by name, whatever the family.
TEST(Family, OtherScoringIsRefused) {
  for (const auto& [folder, config] : oracle_configs()) {
    SCOPED_TRACE(folder);
    const auto ok = spec_of(config);
    ASSERT_TRUE(ok.ok()) << ok.error().text;
    if (ok->moe_layers() == 0) continue;
    const bool sigmoid = ok->router.kind == RouterKind::kSigmoidTopK;
    Json changed = config;
    changed["scoring_func"] = sigmoid ? "sigmoid" : "softmax";
    EXPECT_TRUE(spec_of(changed).ok());
    for (const std::string scoring : {sigmoid ? "softmax" : "sigmoid", "sqrtsoftplus"}) {
      changed["scoring_func"] = scoring;
      expect_error(spec_of(changed), {"scoring_func " + scoring, config["model_type"].get<std::string>()});
    }
  }
}

/// Without layer_types every second layer slides, from the first one on.
TEST(Family, GptOssSlidesInEvenLayers) {
  const auto windows = [](const std::string& more) {
    const auto c =
        parse_config(R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64,
        "num_hidden_layers": 4, "vocab_size": 99, "max_position_embeddings": 99, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32, "num_local_experts": 4,
        "num_experts_per_tok": 2)" +
                         more + "}",
                     "");
    EXPECT_TRUE(c.ok()) << c.error().text;
    const auto m = c->family->describe(*c);
    EXPECT_TRUE(m.ok()) << m.error().text;
    std::vector<std::uint32_t> out;
    for (const LayerSpec& l : m->layers) out.push_back(l.window);
    return out;
  };
  using Windows = std::vector<std::uint32_t>;
  EXPECT_EQ(windows(""), (Windows{128, 0, 128, 0}));
  EXPECT_EQ(windows(R"(, "sliding_window": 9, "layer_types": ["full_attention", "sliding_attention",
      "sliding_attention", "full_attention"])"),
            (Windows{0, 9, 9, 0}));
}

/// The families without experts: every layer has an MLP, and what they cannot do is refused by its key.
TEST(Family, DenseOnesHaveNoExperts) {
  const auto read = [](const std::string& type, const std::string& architecture, const std::string& more) {
    return spec_of(Json::parse(
        R"({"architectures": [")" + architecture + R"("], "model_type": ")" + type +
        R"(", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99, "max_position_embeddings": 99,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32)" +
        more + "}"));
  };
  const auto llama = read("llama", "LlamaForCausalLM", R"(, "attention_bias": true, "mlp_bias": false)");
  ASSERT_TRUE(llama.ok()) << llama.error().text;
  EXPECT_EQ(llama->moe_layers(), 0u);
  EXPECT_EQ(llama->layers.size(), 2u);
  EXPECT_EQ(llama->layers[1].dense_width, 32u);
  EXPECT_EQ(llama->attention.head_dim, 16u);
  EXPECT_EQ(llama->attention.rope.theta, 10000.0);
  EXPECT_TRUE(llama->attention.qkv_bias && llama->attention.output_bias);
  expect_error(read("llama", "LlamaForCausalLM", R"(, "mlp_bias": true)"), {"mlp_bias true"});

  const auto window = [&](const std::string& more) {
    return read("mistral", "MistralForCausalLM", more)->layers[1].window;
  };
  EXPECT_EQ(window(""), 4096u);
  EXPECT_EQ(window(R"(, "sliding_window": null)"), 0u);
  EXPECT_EQ(window(R"(, "sliding_window": 20)"), 20u);

  const auto qwen3 = read("qwen3", "Qwen3ForCausalLM", R"(, "head_dim": 24)");
  ASSERT_TRUE(qwen3.ok()) << qwen3.error().text;
  EXPECT_EQ(qwen3->attention.qk_norm, QkNorm::kHead);
  EXPECT_EQ(qwen3->attention.head_dim, 24u);
  expect_error(read("qwen3", "Qwen3ForCausalLM", ""), {"head_dim is missing"});
  expect_error(read("qwen3", "Qwen3ForCausalLM", R"(, "head_dim": 24, "use_sliding_window": true)"),
               {"use_sliding_window"});
}

/// What a position of a published model takes in bf16: only what latent attention has to keep (spec 2.5).
TEST(Family, LatentAttentionKeepsLatentsAlone) {
  const auto kv_bytes = [](const char* config) {
    const auto c = parse_config(config, "");
    EXPECT_TRUE(c.ok()) << c.error().text;
    const auto m = c->family->describe(*c);
    EXPECT_TRUE(m.ok()) << m.error().text;
    return m->kv_width_of_all() * 2;
  };
  EXPECT_EQ(
      kv_bytes(
          R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
      "num_hidden_layers": 61, "vocab_size": 129280, "max_position_embeddings": 163840, "num_attention_heads": 128,
      "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3, "intermediate_size": 18432,
      "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
      "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "rope_theta": 10000})"),
      70272u);
  EXPECT_EQ(
      kv_bytes(
          R"({"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
      "num_hidden_layers": 78, "vocab_size": 154880, "max_position_embeddings": 1048576, "num_attention_heads": 64,
      "num_key_value_heads": 64, "head_dim": 192, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
      "qk_rope_head_dim": 64, "v_head_dim": 256, "first_k_dense_replace": 3, "intermediate_size": 12288,
      "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
      "routed_scaling_factor": 2.5, "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
      "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_topk_freq": 4,
      "index_skip_topk_offset": 3})"),
      95232u);
}

TEST(Family, NamesMatchWholeAndGiveTheirNumbers) {
  const Family& f = qwen3_moe_family();
  auto m = match_name(f, "model.layers.17.mlp.experts.120.up_proj");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->layer, 17u);
  EXPECT_EQ(m->expert, 120u);
  EXPECT_EQ(m->rule->part, Part::kUp);
  for (const char* bad : {"model.layers.017.mlp.gate", "model.layers..mlp.gate", "model.layers.1.mlp.gate.x",
                          "model.layers.-1.mlp.gate", "model.layers.99999999999.mlp.gate", "",
                          "model.layers.1.mlp.experts.1.w1"}) {
    EXPECT_FALSE(match_name(f, bad)) << bad;
  }
  EXPECT_EQ(source_of(f, "layers.3.attn.q"), "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(split_name("a.weight_packed").kind, TensorName::Kind::kPacked);
  EXPECT_EQ(split_name("a.weight_packed").module, "a");
}

}  // namespace
}  // namespace wisp::model
