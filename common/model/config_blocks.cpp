#include <array>

#include "model/config.hpp"
#include "model/limits.hpp"

/// Parts of a config that several families read in the same way.
namespace wisp::model {

ModelSpec begin_spec(const Config& c) {
  ModelSpec m;
  m.family = c.model_type;
  m.hidden = c.hidden;
  m.vocab = c.vocab;
  m.max_positions = c.max_positions;
  m.norm_eps = static_cast<float>(c.norm_eps);
  m.attention.heads = c.heads;
  m.attention.kv_heads = c.kv_heads;
  m.attention.head_dim = c.head_dim;
  return m;
}

Result<RouterSpec> read_router(const Config& c, std::span<const char* const> keys, bool renormalise,
                               std::string_view scores) {
  const Fields f = c.fields();
  // Another way of scoring chooses other experts, and no tensor would tell.
  WISP_ASSIGN(const std::string scoring, f.text_or("scoring_func", std::string(scores)));
  if (scoring != scores)
    return unsupported(f.where() + ": scoring_func " + printable(scoring) + " is not supported for " +
                       c.model_type + "; supported: " + std::string(scores));
  const char* experts = keys.front();
  for (const char* key : keys)
    if (f.has(key)) experts = key;
  RouterSpec r;
  WISP_ASSIGN(r.experts, f.u32(experts, 1, kMaxExperts));
  WISP_ASSIGN(r.top_k, f.u32("num_experts_per_tok", 1, kMaxExperts));
  if (r.top_k > r.experts) {
    return f.wrong("num_experts_per_tok",
                   std::to_string(r.top_k) + " is more than " + experts + " " + std::to_string(r.experts));
  }
  WISP_ASSIGN(r.renormalise, f.boolean_or("norm_topk_prob", renormalise));
  return r;
}

Status read_latent(const Config& c, AttentionSpec& a) {
  const Fields f = c.fields();
  LatentSpec& l = a.latent;
  WISP_ASSIGN(l.kv_rank, f.u32("kv_lora_rank", 1, kMaxHeadDim));
  WISP_ASSIGN(l.q_rank, f.u32_or("q_lora_rank", 0, 0, kMaxWidth));
  WISP_ASSIGN(l.nope, f.u32("qk_nope_head_dim", 1, kMaxHeadDim));
  WISP_ASSIGN(l.value, f.u32("v_head_dim", 1, kMaxHeadDim));
  WISP_ASSIGN(const std::uint32_t rotated, f.u32("qk_rope_head_dim", 2, kMaxHeadDim));
  WISP_ASSIGN(a.rope, read_rope(c, rotated, {.theta = 1e4, .partial = 1.0}));
  WISP_ASSIGN(a.rope.interleaved, f.boolean_or("rope_interleave", true));
  a.head_dim = l.nope + a.rope.width;
  a.kv_heads = a.heads;
  WISP_ASSIGN(a.qkv_bias, f.boolean_or("attention_bias", false));
  a.output_bias = a.qkv_bias;
  return {};
}

Status refuse_sliding_window(const Config& c) {
  WISP_ASSIGN(const bool sliding, c.fields().boolean_or("use_sliding_window", false));
  if (sliding) return unsupported(c.where + ": use_sliding_window true is not supported");
  return {};
}

namespace {

Status read_layer_types(const Fields& f, std::vector<LayerSpec>& layers) {
  WISP_ASSIGN(const Json* list, f.array("mlp_layer_types"));
  if (list->size() != layers.size()) {
    return f.wrong("mlp_layer_types", "has " + std::to_string(list->size()) +
                                          " entries, num_hidden_layers is " + std::to_string(layers.size()));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if ((*list)[i] == "dense")
      layers[i].moe = false;
    else if ((*list)[i] != "sparse") {
      return unsupported(f.where() + ": mlp_layer_types " + printable((*list)[i].dump()) +
                         " is not supported; supported: sparse, dense");
    }
  }
  return {};
}

Status read_dense_widths(const Fields& f, std::vector<LayerSpec>& layers) {
  for (auto& l : layers) {
    if (l.moe) continue;
    WISP_ASSIGN(l.dense_width, f.u32("intermediate_size", 1, kMaxWidth));
  }
  return {};
}

/// Where the first layers are dense: mlp_layer_types, else first_k_dense_replace.
Result<std::vector<LayerSpec>> read_dense_first_layers(const Config& c) {
  const Fields f = c.fields();
  std::vector<LayerSpec> layers(c.layers);
  if (f.has("mlp_layer_types")) {
    WISP_TRY(read_layer_types(f, layers));
  } else {
    WISP_ASSIGN(const std::uint32_t first, f.u32_or("first_k_dense_replace", 0, 0, kMaxLayers));
    WISP_ASSIGN(const std::uint32_t step, f.u32_or("moe_layer_freq", 1, 1, kMaxLayers));
    for (std::uint32_t i = 0; i < c.layers; ++i) layers[i].moe = i >= first && i % step == 0;
  }
  WISP_TRY(read_dense_widths(f, layers));
  return layers;
}

/// The numbers that only R4 routers have: n_group, topk_group, routed_scaling_factor.
Status read_sigmoid_router(const Config& c, RouterSpec& r) {
  const Fields f = c.fields();
  r.kind = RouterKind::kSigmoidTopK;
  WISP_ASSIGN(r.groups, f.u32_or("n_group", 1, 1, kMaxExperts));
  WISP_ASSIGN(r.kept_groups, f.u32_or("topk_group", 1, 1, kMaxExperts));
  WISP_ASSIGN(const double scale, f.number_or("routed_scaling_factor", 1.0, 0.0, 1e6));
  r.scale = static_cast<float>(scale);
  // Only one is ever published; another value would mean other mathematics.
  WISP_ASSIGN(const std::string method, f.text_or("topk_method", "noaux_tc"));
  if (method != "noaux_tc")
    return unsupported(f.where() + ": topk_method " + printable(method) +
                       " is not supported; supported: noaux_tc");
  return {};
}

}  // namespace

Status read_sigmoid_mixture(const Config& c, ModelSpec& m) {
  const Fields f = c.fields();
  WISP_ASSIGN(m.layers, read_dense_first_layers(c));
  if (m.moe_layers() == 0) return {};
  constexpr std::array kExpertKeys{"n_routed_experts"};
  WISP_ASSIGN(m.router, read_router(c, kExpertKeys, true, "sigmoid"));
  WISP_TRY(read_sigmoid_router(c, m.router));
  WISP_ASSIGN(m.moe_width, f.u32("moe_intermediate_size", 1, kMaxWidth));
  WISP_ASSIGN(const std::uint32_t shared, f.u32_or("n_shared_experts", 0, 0, kMaxWidth / m.moe_width));
  m.shared.width = shared * m.moe_width;
  return {};
}

Result<std::vector<LayerSpec>> read_sparse_layers(const Config& c) {
  const Fields f = c.fields();
  std::vector<LayerSpec> layers(c.layers);
  if (f.has("mlp_layer_types")) {
    WISP_TRY(read_layer_types(f, layers));
  } else {
    WISP_ASSIGN(const std::uint32_t step, f.u32_or("decoder_sparse_step", 1, 1, kMaxLayers));
    for (std::uint32_t i = 0; i < c.layers; ++i) layers[i].moe = (i + 1) % step == 0;
    if (f.has("mlp_only_layers")) {
      WISP_ASSIGN(const Json* list, f.array("mlp_only_layers"));
      for (const auto& v : *list) {
        if (!v.is_number_unsigned() || v.get<std::uint64_t>() >= c.layers) {
          return f.wrong("mlp_only_layers", "names layer " + printable(v.dump()) + ", num_hidden_layers is " +
                                                std::to_string(c.layers));
        }
        layers[v.get<std::size_t>()].moe = false;
      }
    }
  }
  WISP_TRY(read_dense_widths(f, layers));
  return layers;
}

}  // namespace wisp::model
