#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures{"Qwen2MoeForCausalLM"};

constexpr std::array kOwn{
    NameRule{"model.layers.{L}.mlp.shared_expert.gate_proj", Role::kDense, "layers.{L}.shared.gate"},
    NameRule{"model.layers.{L}.mlp.shared_expert.up_proj", Role::kDense, "layers.{L}.shared.up"},
    NameRule{"model.layers.{L}.mlp.shared_expert.down_proj", Role::kDense, "layers.{L}.shared.down"},
    NameRule{"model.layers.{L}.mlp.shared_expert_gate", Role::kDense, "layers.{L}.shared.mix"},
};
constexpr std::array<std::span<const NameRule>, 4> kNames{names::kSkeleton, names::kMlp, names::kExperts,
                                                          kOwn};

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  WISP_TRY(refuse_sliding_window(c));
  ModelSpec m = begin_spec(c);
  WISP_ASSIGN(m.attention.qkv_bias, f.boolean_or("qkv_bias", true));
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1e4, .partial = 1.0}));
  WISP_ASSIGN(m.layers, read_sparse_layers(c));
  if (m.moe_layers() == 0) return m;
  constexpr std::array kExpertKeys{"num_experts"};
  WISP_ASSIGN(m.router, read_router(c, kExpertKeys, false));
  WISP_ASSIGN(m.moe_width, f.u32("moe_intermediate_size", 1, kMaxWidth));
  WISP_ASSIGN(m.shared.width, f.u32("shared_expert_intermediate_size", 1, kMaxWidth));
  m.shared.gated = true;
  return m;
}

}  // namespace

const Family& qwen2_moe_family() {
  static constexpr Family kFamily{"qwen2_moe", kArchitectures, kNames, describe};
  return kFamily;
}

}  // namespace wisp::model
