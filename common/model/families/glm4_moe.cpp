#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures{"Glm4MoeForCausalLM"};

constexpr std::array<std::span<const NameRule>, 5> kNames{names::kSkeleton, names::kQkNorms, names::kMlp,
                                                          names::kExperts, names::kSelectionAndShared};

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  ModelSpec m = begin_spec(c);
  WISP_ASSIGN(const bool norm, f.boolean_or("use_qk_norm", false));
  m.attention.qk_norm = norm ? QkNorm::kHead : QkNorm::kNone;
  WISP_ASSIGN(m.attention.qkv_bias, f.boolean_or("attention_bias", false));
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1e4, .partial = 0.5}));
  WISP_ASSIGN(m.layers, read_dense_first_layers(c));
  if (m.moe_layers() == 0) return m;
  constexpr std::array kExpertKeys{"n_routed_experts"};
  WISP_ASSIGN(m.router, read_router(c, kExpertKeys, true));
  WISP_TRY(read_sigmoid_router(c, m.router));
  WISP_ASSIGN(m.moe_width, f.u32("moe_intermediate_size", 1, kMaxWidth));
  WISP_ASSIGN(const std::uint32_t shared, f.u32_or("n_shared_experts", 0, 0, kMaxWidth / m.moe_width));
  m.shared.width = shared * m.moe_width;
  return m;
}

}  // namespace

const Family& glm4_moe_family() {
  static constexpr Family kFamily{"glm4_moe", kArchitectures, kNames, describe};
  return kFamily;
}

}  // namespace wisp::model
