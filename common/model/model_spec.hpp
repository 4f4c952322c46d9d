#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wisp/kernels/kv_format.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::model {

/// YaRN parameters as the config gives them (spec 2.3).
struct YarnSpec {
  double factor = 1.0;
  double original_length = 0.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;            ///< 0 = not given
  double mscale_all_dim = 0.0;    ///< 0 = not given
  double attention_factor = 0.0;  ///< 0 = not given; an explicit one wins
  bool truncate = true;
};

/// Llama 3's scaling (Llama3RotaryEmbedding of transformers, `llama3` in its modeling_rope_utils): waves that
/// turn often within the original length keep their frequency, those that turn seldom are slowed by `factor`,
/// between the two the frequencies are mixed.
struct Llama3Spec {
  double factor = 1.0;
  double original_length = 0.0;
  double low_turns = 1.0;   ///< low_freq_factor: at most so many turns are seldom
  double high_turns = 4.0;  ///< high_freq_factor: at least so many are often
};

struct RopeSpec {
  double theta = 10000.0;
  std::uint32_t width = 0;  ///< rotated entries of a head
  bool interleaved = false;
  std::optional<YarnSpec> yarn;  ///< at most one of the two
  std::optional<Llama3Spec> llama3;
};

/// What of q and k is RMS-normalised before rope.
enum class QkNorm : std::uint8_t {
  kNone,
  kHead,   ///< each head, one weight for all
  kWhole,  ///< the whole vector of all heads
};

/// Multi-head latent attention (spec 2.5): keys and values of all heads come from one latent vector.
struct LatentSpec {
  std::uint32_t kv_rank = 0;  ///< 0 = the model has grouped-query attention
  std::uint32_t q_rank = 0;   ///< 0 = queries come from one matrix
  std::uint32_t nope = 0;     ///< entries of a head that are not rotated; those that are: rope.width
  std::uint32_t value = 0;    ///< entries of a head's output
  float norm_eps = 1e-6f;     ///< of the norms of the two latents
};

/// The scorer that picks which positions a row of latent attention sees (spec 2.6); heads 0 = all of them.
struct IndexerSpec {
  std::uint32_t heads = 0;
  std::uint32_t head_dim = 0;  ///< the first rope.width entries are rotated
  std::uint32_t top_k = 0;     ///< positions that a row sees at most, its own included
  bool interleaved = false;    ///< how they are rotated, whatever the main heads do
};

/// Grouped-query attention (spec 2.4), or latent attention.
struct AttentionSpec {
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;  ///< latent: nope + rope.width
  QkNorm qk_norm = QkNorm::kNone;
  float clip = 0.0f;         ///< q, k, v clamped to +-clip, after a whole norm and before rope; 0 = not
  bool qkv_bias = false;     ///< q, k, v have biases; latent: the two that make the latents
  bool output_bias = false;  ///< o has one
  bool sinks = false;        ///< each head has one more logit, whose probability is dropped
  RopeSpec rope;
  LatentSpec latent;
  IndexerSpec indexer;

  bool is_latent() const { return latent.kv_rank != 0; }
  /// Entries of the heads' outputs that `o` takes.
  std::uint32_t output_width() const { return heads * (is_latent() ? latent.value : head_dim); }
  /// Numbers that a layer keeps of a position, index keys apart.
  std::uint32_t kv_width() const {
    return is_latent() ? latent.kv_rank + rope.width : 2 * kv_heads * head_dim;
  }
  /// Rows of a head in the two matrices that are made from kv_b: padded to whole tiles.
  std::uint32_t key_up_rows() const { return kernels::tiles_of(latent.kv_rank) * kernels::kTileRows; }
  std::uint32_t value_up_rows() const { return kernels::tiles_of(latent.value) * kernels::kTileRows; }
};

/// Spec 2.7.
enum class RouterKind : std::uint8_t {
  kSoftmaxTopK,  ///< R1 / R2: softmax, top-k, renormalised or not
  kSigmoidTopK,  ///< R4: sigmoid, top-k of score + selection bias, groups first
  kTopKSoftmax,  ///< R3: top-k of logits, softmax over them; the logits have a bias
};

struct RouterSpec {
  RouterKind kind = RouterKind::kSoftmaxTopK;
  std::uint32_t experts = 0;
  std::uint32_t top_k = 0;
  bool renormalise = true;
  // kSigmoidTopK
  std::uint32_t groups = 1;       ///< experts lie in this many groups of equal size
  std::uint32_t kept_groups = 1;  ///< groups that may be chosen from
  float scale = 1.0f;             ///< of the routed sum
};

/// How gate and up are joined (spec 2.8): silu(g) u, or with limits (u + 1) g sigmoid(alpha g), g <= limit,
/// |u| <= limit.
struct GluSpec {
  float limit = 0.0f;  ///< 0 = the plain form
  float alpha = 1.702f;
};

/// An MLP that every row passes besides its routed experts; width 0 = there is none.
struct SharedExpertSpec {
  std::uint32_t width = 0;
  bool gated = false;  ///< its output times sigmoid(one more product with the row)
};

/// One decoder layer: a routed mixture or a dense MLP of `dense_width`.
struct LayerSpec {
  bool moe = true;
  std::uint32_t dense_width = 0;  ///< only for dense layers
  std::uint32_t window = 0;       ///< a row sees so many positions, its own included; 0 = all
  bool indexes = true;            ///< where there is an indexer: has one, or uses the last one's choice
};

/// Where one plane of an expert lies inside its extent.
struct ExpertMatrix {
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  std::uint32_t rows = 0, cols = 0, group = 0;
  std::uint64_t codes_offset = 0;   ///< bytes from the extent's start, aligned to 64
  std::uint64_t scales_offset = 0;  ///< same; 0 where there are no scales
  std::uint64_t bias_offset = 0;    ///< f32 [rows], same; 0 where there is no bias
  std::uint64_t order_offset = 0;   ///< u32 [cols], same: the input at each column's place; 0 where in order
};

/// The shape of every expert of the model: gate, up, down in the order in which the kernels stream them.
struct ExpertShape {
  ExpertMatrix gate, up, down;
  std::uint64_t payload = 0;  ///< bytes that carry data
  std::uint64_t stride = 0;   ///< payload rounded up to 4096: what a read brings and a slot holds
};

/// Everything that the forward pass of a family needs to know of a model. Written by a family description at
/// convert time, stored in the manifest, read by compute. No code of the engine looks at `family`.
struct ModelSpec {
  std::string family;  ///< the config's model_type
  std::uint32_t hidden = 0;
  std::uint32_t vocab = 0;
  std::uint32_t max_positions = 0;
  float norm_eps = 1e-6f;
  bool tied_head = false;
  std::uint32_t moe_width = 0;
  AttentionSpec attention;
  RouterSpec router;
  SharedExpertSpec shared;  ///< of every MoE layer
  GluSpec glu;
  bool expert_bias = false;         ///< gate, up and down of experts have biases
  std::uint32_t ordered_width = 0;  ///< widest matrix whose columns come in an order of their own; 0 = none
  /// One layer that drafts for the model of this shape (draft_head.hpp): its input is joined of an embedding
  /// and a row of that model, whose embedding and output matrix it shares.
  bool draft_head = false;
  std::vector<LayerSpec> layers;
  ExpertShape expert;  ///< all zero where no layer is MoE

  /// Numbers that layer `i` keeps of a position.
  std::uint32_t kv_width(std::size_t i) const {
    return attention.kv_width() +
           (attention.indexer.heads != 0 && layers[i].indexes ? attention.indexer.head_dim : 0);
  }
  /// Numbers that all layers keep of a position.
  std::uint64_t kv_width_of_all() const {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) n += kv_width(i);
    return n;
  }
  /// Columns of the widest matrix that activations are multiplied with.
  std::uint32_t widest_input() const {
    std::uint32_t n =
        std::max({hidden, moe_width, shared.width, attention.output_width(), attention.latent.q_rank});
    for (const auto& l : layers) n = std::max(n, l.dense_width);
    return draft_head ? std::max(n, 2 * hidden) : n;
  }
  /// Bytes of one KV page of all layers.
  std::uint64_t kv_page_bytes(kernels::KvFormat f) const {
    return kv_width_of_all() * kernels::kPageTokens * kernels::kv_bytes(f);
  }
  std::uint32_t moe_layers() const {
    std::uint32_t n = 0;
    for (const auto& l : layers) n += l.moe ? 1 : 0;
    return n;
  }
  /// Expert extents in the bank.
  std::uint32_t expert_count() const { return moe_layers() * router.experts; }
};

}  // namespace wisp::model
