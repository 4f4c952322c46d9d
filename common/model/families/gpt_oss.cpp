#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures{"GptOssForCausalLM"};

constexpr std::array kOwn{
    NameRule{"model.layers.{L}.self_attn.sinks", Role::kDense, "layers.{L}.attn.sinks", Part::kGate, true},
    NameRule{"model.layers.{L}.mlp.router", Role::kDense, "layers.{L}.router"},
    NameRule{"model.layers.{L}.mlp.experts.gate_up_proj_blocks", Role::kBlocks, {}, Part::kGateUp, true},
    NameRule{"model.layers.{L}.mlp.experts.down_proj_blocks", Role::kBlocks, {}, Part::kDown, true},
    NameRule{"model.layers.{L}.mlp.experts.gate_up_proj_scales", Role::kBlockScales, {}, Part::kGateUp, true},
    NameRule{"model.layers.{L}.mlp.experts.down_proj_scales", Role::kBlockScales, {}, Part::kDown, true},
    // As transformers saves it, dequantised.
    NameRule{"model.layers.{L}.mlp.experts.gate_up_proj", Role::kTransposed, {}, Part::kGateUp, true},
    NameRule{"model.layers.{L}.mlp.experts.down_proj", Role::kTransposed, {}, Part::kDown, true},
    NameRule{"model.layers.{L}.mlp.experts.gate_up_proj_bias", Role::kFusedBias, {}, Part::kGateUp, true},
    NameRule{"model.layers.{L}.mlp.experts.down_proj_bias", Role::kFusedBias, {}, Part::kDown, true},
};
constexpr std::array<std::span<const NameRule>, 2> kNames{names::kSkeleton, kOwn};

/// layer_types, else every second layer from the first one on.
Status read_windows(const Config& c, ModelSpec& m) {
  const Fields f = c.fields();
  WISP_ASSIGN(const std::uint32_t window, f.u32_or("sliding_window", 128, 1, kMaxPositions));
  if (!f.has("layer_types")) {
    for (std::size_t i = 0; i < m.layers.size(); i += 2) m.layers[i].window = window;
    return {};
  }
  WISP_ASSIGN(const Json* list, f.array("layer_types"));
  if (list->size() != m.layers.size())
    return f.wrong("layer_types", "has " + std::to_string(list->size()) + " entries, num_hidden_layers is " +
                                      std::to_string(m.layers.size()));
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    if ((*list)[i] == "sliding_attention")
      m.layers[i].window = window;
    else if ((*list)[i] != "full_attention")
      return unsupported(f.where() + ": layer_types " + printable((*list)[i].dump()) +
                         " is not supported; supported: full_attention, sliding_attention");
  }
  return {};
}

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  ModelSpec m = begin_spec(c);
  m.attention.sinks = true;
  WISP_ASSIGN(m.attention.qkv_bias, f.boolean_or("attention_bias", true));
  m.attention.output_bias = m.attention.qkv_bias;
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1.5e5, .partial = 1.0}));
  m.layers.resize(c.layers);
  WISP_TRY(read_windows(c, m));
  constexpr std::array kExpertKeys{"num_local_experts"};
  WISP_ASSIGN(m.router, read_router(c, kExpertKeys, true));
  m.router.kind = RouterKind::kTopKSoftmax;
  m.router.renormalise = true;
  WISP_ASSIGN(m.moe_width, f.u32("intermediate_size", 1, kMaxWidth));
  WISP_ASSIGN(const double limit, f.number_or("swiglu_limit", 7.0, 1e-6, 1e9));
  WISP_ASSIGN(const double alpha, f.number_or("swiglu_alpha", 1.702, 0.0, 1e9));
  m.glu = {static_cast<float>(limit), static_cast<float>(alpha)};
  m.expert_bias = true;
  return m;
}

}  // namespace

const Family& gpt_oss_family() {
  static constexpr Family kFamily{"gpt_oss", kArchitectures, kNames, describe};
  return kFamily;
}

}  // namespace wisp::model
