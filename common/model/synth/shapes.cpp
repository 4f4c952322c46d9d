#include "model/synth/shapes.hpp"

#include <algorithm>
#include <array>

#include "model/config.hpp"
#include "model/family.hpp"
#include "model/synth.hpp"

namespace wisp::model {
namespace {

using kernels::WeightFormat;

/// A config as its publisher wrote it, without what says nothing about shapes.
struct Published {
  const char* name;
  WeightFormat dense;
  const char* config;
};

constexpr std::array<Published, 7> kPublished{{
    {"qwen3-30b", WeightFormat::kBf16,
     R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
         "moe_intermediate_size": 768, "norm_topk_prob": true, "vocab_size": 151936,
         "max_position_embeddings": 40960, "rope_theta": 1e6, "rms_norm_eps": 1e-6})"},
    {"qwen3-235b", WeightFormat::kBf16,
     R"({"model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
         "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
         "moe_intermediate_size": 1536, "norm_topk_prob": true, "vocab_size": 151936,
         "max_position_embeddings": 40960, "rope_theta": 1e6, "rms_norm_eps": 1e-6})"},
    {"qwen3-480b", WeightFormat::kBf16,
     R"({"model_type": "qwen3_moe", "hidden_size": 6144, "num_hidden_layers": 62, "num_attention_heads": 96,
         "num_key_value_heads": 8, "head_dim": 128, "num_experts": 160, "num_experts_per_tok": 8,
         "moe_intermediate_size": 2560, "norm_topk_prob": true, "vocab_size": 151936,
         "max_position_embeddings": 262144, "rope_theta": 1e7, "rms_norm_eps": 1e-6})"},
    {"mixtral-8x7b", WeightFormat::kBf16,
     R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 8, "num_experts_per_tok": 2,
         "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 32768,
         "rope_theta": 1e6, "rms_norm_eps": 1e-5})"},
    {"deepseek-v3", WeightFormat::kFp8,
     R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
         "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432,
         "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
         "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
         "routed_scaling_factor": 2.5, "norm_topk_prob": true, "scoring_func": "sigmoid",
         "vocab_size": 129280, "max_position_embeddings": 163840, "rope_theta": 10000, "rms_norm_eps": 1e-6,
         "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
                          "mscale_all_dim": 1, "original_max_position_embeddings": 4096}})"},
    {"glm-5.2", WeightFormat::kBf16,
     R"({"model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78,
         "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512,
         "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "intermediate_size": 12288,
         "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
         "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 3,
         "routed_scaling_factor": 2.5, "norm_topk_prob": true, "scoring_func": "sigmoid",
         "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_topk_freq": 4,
         "index_skip_topk_offset": 3, "vocab_size": 154880, "max_position_embeddings": 1048576,
         "rope_theta": 8e6, "rms_norm_eps": 1e-5})"},
    // Not a published model: the demo model's shape.
    {"pocket", WeightFormat::kBf16,
     R"({"model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 64, "num_experts": 32, "num_experts_per_tok": 4,
         "moe_intermediate_size": 128, "norm_topk_prob": true, "vocab_size": 4096,
         "max_position_embeddings": 2048, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
         "tie_word_embeddings": true})"},
}};

/// The key of the config that holds a number under one of these names.
std::string key_of(const Json& config, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (config.contains(name)) return name;
  return *names.begin();
}

Result<Json> with_overrides(Json c, const SynthOptions& o) {
  const bool latent = c.contains("kv_lora_rank");
  if (latent && (o.kv_heads || o.head_dim))
    return unsupported(o.like + " has latent attention: --kv-heads and --head-dim do not apply");
  const auto set = [&c](const std::string& key, const std::optional<std::uint32_t>& value) {
    if (value) c[key] = *value;
  };
  set("num_hidden_layers", o.layers);
  set("hidden_size", o.hidden);
  set("num_attention_heads", o.heads);
  set("num_key_value_heads", latent ? o.heads : o.kv_heads);
  set("head_dim", o.head_dim);
  set("vocab_size", o.vocab);
  set("max_position_embeddings", o.max_positions);
  set(key_of(c, {"moe_intermediate_size", "intermediate_size"}), o.width);
  const std::string experts = key_of(c, {"num_experts", "num_local_experts", "n_routed_experts"});
  set(experts, o.experts);
  const std::uint32_t n = c[experts], published = c["num_experts_per_tok"];
  const std::uint32_t top_k = o.top_k.value_or(std::min(published, n));
  c["num_experts_per_tok"] = top_k;
  if (const std::uint32_t groups = c.value("n_group", 1u); groups > 1) {
    const std::uint32_t size = n / groups, kept = c["topk_group"];
    if (n % groups != 0 || size < 2 || top_k > size * kept) c["n_group"] = c["topk_group"] = 1;
  }
  if (const std::uint32_t first = c.value("first_k_dense_replace", 0u), layers = c["num_hidden_layers"];
      first >= layers && layers > 0)
    c["first_k_dense_replace"] = layers - 1;
  return c;
}

}  // namespace

std::vector<std::string> synth_shapes() {
  std::vector<std::string> names;
  for (const Published& p : kPublished) names.emplace_back(p.name);
  return names;
}

Result<SynthShape> synth_shape(const SynthOptions& options) {
  const auto* const p = std::find_if(kPublished.begin(), kPublished.end(),
                                     [&](const Published& known) { return options.like == known.name; });
  if (p == kPublished.end()) {
    std::string names;
    for (const auto& n : synth_shapes()) names += (names.empty() ? "" : ", ") + n;
    return unsupported("shape " + options.like + " is not known; known: " + names);
  }
  WISP_ASSIGN(const Json config, with_overrides(Json::parse(p->config), options));
  WISP_ASSIGN(const Config c, parse_config(config.dump(), {}));
  SynthShape shape{p->name, {}, p->dense};
  WISP_ASSIGN(shape.spec, c.family->describe(c));
  shape.spec.tied_head = c.tied.value_or(false);
  return shape;
}

}  // namespace wisp::model
