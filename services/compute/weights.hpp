#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/manifest.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::compute {

/// A matrix of the dense region with its bias, if it has one.
struct Linear {
  kernels::WeightView weight;  ///< [rows, cols]; rows 0 where the tensor does not exist
  std::vector<float> bias;     ///< [rows] or empty
  explicit operator bool() const { return weight.rows != 0; }
};

struct LayerWeights {
  std::vector<float> attn_norm;  ///< [hidden]
  std::vector<float> ffn_norm;   ///< [hidden]
  Linear q, k, v, o;
  Linear q_a, kv_a;                                    ///< latent attention: what makes the latents
  std::vector<float> q_a_norm, kv_a_norm;              ///< [q_rank], [kv_rank]
  kernels::WeightView k_up, v_up;                      ///< see model::Derivation
  std::vector<float> q_norm, k_norm;                   ///< [head_dim] or [heads * head_dim], or empty
  Linear router;                                       ///< [experts, hidden], MoE layers
  Linear index_q, index_k, index_weights;              ///< the indexer of latent attention
  std::vector<float> index_k_norm, index_k_norm_bias;  ///< [its head_dim]
  std::vector<float> sinks;                            ///< [heads] or empty
  std::vector<float> selection;  ///< [experts] added to the scores that choose, or empty
  Linear gate, up, down;         ///< the MLP of a dense layer, or the shared expert of a MoE layer
  Linear mix;                    ///< [1, hidden]: how much the shared expert counts, where it is gated
};

/// The dense part of a model: views into the region `dense` (owned by the caller), small vectors as f32.
struct Weights {
  kernels::WeightView embed;  ///< [vocab, hidden]
  Linear head;                ///< [vocab, hidden]; the embedding where the head is tied
  Linear join;                ///< [hidden, 2 hidden] of a draft head, and the norms of its two inputs
  std::vector<float> join_embed_norm, join_hidden_norm;
  std::vector<float> norm;  ///< [hidden]
  std::vector<LayerWeights> layers;

  /// Binds every tensor that the spec demands. A draft head's embedding and output matrix are another
  /// model's: bind_tables. Errors: kInvalid naming a tensor that is missing or has another shape.
  static Result<Weights> bind(const model::Manifest& m, const std::byte* dense, std::uint64_t dense_bytes);
  /// Embedding and output matrix alone, of `m`. Errors as above.
  Status bind_tables(const model::Manifest& m, const std::byte* dense, std::uint64_t dense_bytes);
};

/// The three matrices of an expert inside its extent.
struct ExpertWeights {
  kernels::WeightView gate, up, down;
  const float *gate_bias, *up_bias, *down_bias;  ///< [rows] or null
  static ExpertWeights at(const model::ExpertShape& shape, const std::byte* extent);
};

}  // namespace wisp::compute
