#pragma once
#include <array>

#include "model/family.hpp"

/// Names that several families share. A family lists the tables it uses and adds its own.
namespace wisp::model::names {

/// Embedding, norms, head, q, k, v, o.
inline constexpr std::array kSkeleton{
    NameRule{"model.embed_tokens", Role::kDense, "embed"},
    NameRule{"lm_head", Role::kDense, "head"},
    NameRule{"model.norm", Role::kDense, "norm"},
    NameRule{"model.layers.{L}.input_layernorm", Role::kDense, "layers.{L}.attn_norm"},
    NameRule{"model.layers.{L}.post_attention_layernorm", Role::kDense, "layers.{L}.ffn_norm"},
    NameRule{"model.layers.{L}.self_attn.q_proj", Role::kDense, "layers.{L}.attn.q"},
    NameRule{"model.layers.{L}.self_attn.k_proj", Role::kDense, "layers.{L}.attn.k"},
    NameRule{"model.layers.{L}.self_attn.v_proj", Role::kDense, "layers.{L}.attn.v"},
    NameRule{"model.layers.{L}.self_attn.o_proj", Role::kDense, "layers.{L}.attn.o"},
    // Rotation tables that old exporters saved: computed from the config.
    NameRule{"model.rotary_emb.inv_freq", Role::kSkip},
    NameRule{"model.layers.{L}.self_attn.rotary_emb.inv_freq", Role::kSkip},
};

inline constexpr std::array kQkNorms{
    NameRule{"model.layers.{L}.self_attn.q_norm", Role::kDense, "layers.{L}.attn.q_norm"},
    NameRule{"model.layers.{L}.self_attn.k_norm", Role::kDense, "layers.{L}.attn.k_norm"},
};

/// Latent attention.
inline constexpr std::array kLatent{
    NameRule{"model.layers.{L}.self_attn.q_a_proj", Role::kDense, "layers.{L}.attn.q_a"},
    NameRule{"model.layers.{L}.self_attn.q_a_layernorm", Role::kDense, "layers.{L}.attn.q_a_norm"},
    NameRule{"model.layers.{L}.self_attn.q_b_proj", Role::kDense, "layers.{L}.attn.q"},
    NameRule{"model.layers.{L}.self_attn.kv_a_proj_with_mqa", Role::kDense, "layers.{L}.attn.kv_a"},
    NameRule{"model.layers.{L}.self_attn.kv_a_layernorm", Role::kDense, "layers.{L}.attn.kv_a_norm"},
    NameRule{"model.layers.{L}.self_attn.kv_b_proj", Role::kDense, "layers.{L}.attn.kv_b"},
};

/// The indexer of latent attention.
inline constexpr std::array kIndexer{
    NameRule{"model.layers.{L}.self_attn.indexer.wq_b", Role::kDense, "layers.{L}.indexer.q"},
    NameRule{"model.layers.{L}.self_attn.indexer.wk", Role::kDense, "layers.{L}.indexer.k"},
    NameRule{"model.layers.{L}.self_attn.indexer.k_norm", Role::kDense, "layers.{L}.indexer.k_norm"},
    NameRule{"model.layers.{L}.self_attn.indexer.weights_proj", Role::kDense, "layers.{L}.indexer.weights"},
};

/// Dense layers.
inline constexpr std::array kMlp{
    NameRule{"model.layers.{L}.mlp.gate_proj", Role::kDense, "layers.{L}.ffn.gate"},
    NameRule{"model.layers.{L}.mlp.up_proj", Role::kDense, "layers.{L}.ffn.up"},
    NameRule{"model.layers.{L}.mlp.down_proj", Role::kDense, "layers.{L}.ffn.down"},
};

/// Router and experts, apart or fused.
inline constexpr std::array kExperts{
    NameRule{"model.layers.{L}.mlp.gate", Role::kDense, "layers.{L}.router"},
    NameRule{"model.layers.{L}.mlp.experts.{E}.gate_proj", Role::kExpert, {}, Part::kGate},
    NameRule{"model.layers.{L}.mlp.experts.{E}.up_proj", Role::kExpert, {}, Part::kUp},
    NameRule{"model.layers.{L}.mlp.experts.{E}.down_proj", Role::kExpert, {}, Part::kDown},
    NameRule{"model.layers.{L}.mlp.experts.gate_up_proj", Role::kFusedExpert, {}, Part::kGateUp},
    NameRule{"model.layers.{L}.mlp.experts.down_proj", Role::kFusedExpert, {}, Part::kDown},
};

/// The selection bias and the shared experts of the DeepSeek line.
inline constexpr std::array kSelectionAndShared{
    NameRule{"model.layers.{L}.mlp.gate.e_score_correction_bias", Role::kDense, "layers.{L}.router.selection",
             Part::kGate, true},
    NameRule{"model.layers.{L}.mlp.shared_experts.gate_proj", Role::kDense, "layers.{L}.shared.gate"},
    NameRule{"model.layers.{L}.mlp.shared_experts.up_proj", Role::kDense, "layers.{L}.shared.up"},
    NameRule{"model.layers.{L}.mlp.shared_experts.down_proj", Role::kDense, "layers.{L}.shared.down"},
};

/// The layer that predicts the token after the next: what it has beside the tensors of a layer. Embedding and
/// output matrix are copies of the model's.
inline constexpr std::array kDraftHead{
    NameRule{"model.layers.{L}.enorm", Role::kDense, "join.embed_norm"},
    NameRule{"model.layers.{L}.hnorm", Role::kDense, "join.hidden_norm"},
    NameRule{"model.layers.{L}.eh_proj", Role::kDense, "join"},
    NameRule{"model.layers.{L}.shared_head.norm", Role::kDense, "norm"},
    NameRule{"model.layers.{L}.shared_head.head", Role::kSkip},
    NameRule{"model.layers.{L}.embed_tokens", Role::kSkip},
};

}  // namespace wisp::model::names
