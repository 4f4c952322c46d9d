#include <array>

#include "model/family.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures{"Qwen3MoeForCausalLM"};

constexpr std::array kNames{
    NameRule{"model.embed_tokens", Role::kDense, "embed"},
    NameRule{"lm_head", Role::kDense, "head"},
    NameRule{"model.norm", Role::kDense, "norm"},
    NameRule{"model.layers.{L}.input_layernorm", Role::kDense, "layers.{L}.attn_norm"},
    NameRule{"model.layers.{L}.post_attention_layernorm", Role::kDense, "layers.{L}.ffn_norm"},
    NameRule{"model.layers.{L}.self_attn.q_proj", Role::kDense, "layers.{L}.attn.q"},
    NameRule{"model.layers.{L}.self_attn.k_proj", Role::kDense, "layers.{L}.attn.k"},
    NameRule{"model.layers.{L}.self_attn.v_proj", Role::kDense, "layers.{L}.attn.v"},
    NameRule{"model.layers.{L}.self_attn.o_proj", Role::kDense, "layers.{L}.attn.o"},
    NameRule{"model.layers.{L}.self_attn.q_norm", Role::kDense, "layers.{L}.attn.q_norm"},
    NameRule{"model.layers.{L}.self_attn.k_norm", Role::kDense, "layers.{L}.attn.k_norm"},
    NameRule{"model.layers.{L}.mlp.gate", Role::kDense, "layers.{L}.router"},
    NameRule{"model.layers.{L}.mlp.gate_proj", Role::kDense, "layers.{L}.ffn.gate"},
    NameRule{"model.layers.{L}.mlp.up_proj", Role::kDense, "layers.{L}.ffn.up"},
    NameRule{"model.layers.{L}.mlp.down_proj", Role::kDense, "layers.{L}.ffn.down"},
    NameRule{"model.layers.{L}.mlp.experts.{E}.gate_proj", Role::kExpert, {}, Part::kGate},
    NameRule{"model.layers.{L}.mlp.experts.{E}.up_proj", Role::kExpert, {}, Part::kUp},
    NameRule{"model.layers.{L}.mlp.experts.{E}.down_proj", Role::kExpert, {}, Part::kDown},
    NameRule{"model.layers.{L}.mlp.experts.gate_up_proj", Role::kFusedExpert, {}, Part::kGateUp},
    NameRule{"model.layers.{L}.mlp.experts.down_proj", Role::kFusedExpert, {}, Part::kDown},
    // Rotation tables that old exporters saved: computed from the config.
    NameRule{"model.rotary_emb.inv_freq", Role::kSkip},
    NameRule{"model.layers.{L}.self_attn.rotary_emb.inv_freq", Role::kSkip},
};

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  WISP_ASSIGN(const bool sliding, f.boolean_or("use_sliding_window", false));
  if (sliding) return unsupported(c.where + ": use_sliding_window true is not supported");

  ModelSpec m;
  m.family = c.model_type;
  m.hidden = c.hidden;
  m.vocab = c.vocab;
  m.max_positions = c.max_positions;
  m.norm_eps = static_cast<float>(c.norm_eps);
  m.attention.heads = c.heads;
  m.attention.kv_heads = c.kv_heads;
  m.attention.head_dim = c.head_dim;
  m.attention.head_norm = true;
  WISP_ASSIGN(m.attention.bias, f.boolean_or("attention_bias", false));
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1e4, .partial = 1.0}));

  WISP_ASSIGN(m.layers, read_sparse_layers(c));
  if (m.moe_layers() == 0) return m;
  // transformers >= 5 writes num_local_experts for this family.
  const char* experts = f.has("num_experts") ? "num_experts" : "num_local_experts";
  WISP_ASSIGN(m.router.experts, f.u32(experts, 1, kMaxExperts));
  WISP_ASSIGN(m.router.top_k, f.u32("num_experts_per_tok", 1, kMaxExperts));
  if (m.router.top_k > m.router.experts) {
    return f.wrong("num_experts_per_tok", std::to_string(m.router.top_k) + " is more than " + experts + " " +
                                              std::to_string(m.router.experts));
  }
  m.router.kind = RouterKind::kSoftmaxTopK;
  WISP_ASSIGN(m.router.renormalise, f.boolean_or("norm_topk_prob", false));
  WISP_ASSIGN(m.moe_width, f.u32("moe_intermediate_size", 1, kMaxWidth));
  return m;
}

}  // namespace

const Family& qwen3_moe_family() {
  static constexpr Family kFamily{"qwen3_moe", kArchitectures, kNames, describe};
  return kFamily;
}

}  // namespace wisp::model
