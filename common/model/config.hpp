#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/json.hpp"
#include "model/manifest.hpp"

namespace wisp::model {

struct Family;

enum class QuantMethod : std::uint8_t { kNone, kCompressed, kMxfp4, kFp8, kGptq, kAwq };

/// How weights are said to be stored (spec 3). What really is stored decides, matrix by matrix; this says
/// what the tensors themselves do not.
struct QuantConfig {
  QuantMethod method = QuantMethod::kNone;
  std::uint32_t group = 0;        ///< columns per scale of int4 weights; 0 = all of them share one
  bool symmetric = true;          ///< no zero points: codes stand for c - 8
  bool act_order = false;         ///< GPTQ: columns belong to groups by g_idx
  std::uint32_t zero_offset = 0;  ///< GPTQ: what a stored zero point is short of
};

/// config.json and generation_config.json in either form (publishers' or transformers >= 5), checked. Holds
/// what all families share; a family reads its own keys through `fields()`.
struct Config {
  const Family* family = nullptr;
  std::string model_type, architecture;
  std::uint32_t hidden = 0, layers = 0, vocab = 0, max_positions = 0;
  std::uint32_t heads = 0, kv_heads = 0;
  std::uint32_t head_dim = 0;  ///< 0 where the family's attention is latent
  double norm_eps = 1e-6;
  std::uint32_t prediction_layers = 0;  ///< behind the last layer; not part of the forward pass
  QuantConfig quant;
  GenerationDefaults generation;
  std::optional<bool> tied;  ///< what tie_word_embeddings says; only for a note, the stored tensors decide

  /// The object that holds the numbers: config.json, or its text_config.
  Fields fields() const { return Fields(*text, where); }

  std::shared_ptr<const Json> root;
  const Json* text = nullptr;
  std::string where;
};

/// Values of keys that a config may leave out.
struct RopeDefaults {
  double theta = 10000.0;
  double partial = 1.0;
};

/// Parses the two texts (`generation` may be empty). Refuses by name: an unknown architecture, activation,
/// rope type or quantisation; and every number that is impossible.
Result<Config> parse_config(std::string_view config, std::string_view generation);
Result<Config> load_config(const std::string& folder);

/// rope_theta + rope_scaling + partial_rotary_factor, or rope_parameters. `head_dim`: entries that may be
/// rotated.
Result<RopeSpec> read_rope(const Config& c, std::uint32_t head_dim, const RopeDefaults& defaults);

/// Experts, experts per token and whether their weights are renormalised; `keys` name the number of experts,
/// `scores` the only scoring_func that the family has.
Result<RouterSpec> read_router(const Config& c, std::span<const char* const> keys, bool renormalise,
                               std::string_view scores = "softmax");
/// quantization_config (or compression_config) of `f`, or none of it. Refuses by name a method, or a setting
/// of a method, that is not supported.
Result<QuantConfig> read_quant(const Fields& f);

/// Layers, R4 router and shared experts as the DeepSeek line and GLM-4.5 name them.
Status read_sigmoid_mixture(const Config& c, ModelSpec& m);
/// What all families copy from the config into the spec; attention by grouped queries without extras.
ModelSpec begin_spec(const Config& c);

/// Ranks, widths and rope of latent attention; head_dim becomes nope + rope.
Status read_latent(const Config& c, AttentionSpec& a);
/// kUnsupported where use_sliding_window is true: no release of the families that have the key sets it.
Status refuse_sliding_window(const Config& c);

/// Which layers are MoE: mlp_layer_types, else mlp_only_layers and decoder_sparse_step. Reads
/// intermediate_size if a layer is dense.
Result<std::vector<LayerSpec>> read_sparse_layers(const Config& c);

}  // namespace wisp::model
