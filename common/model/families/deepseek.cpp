#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

/// DeepSeek V3 and the models built like it: latent attention, grouped sigmoid routing, shared experts.
namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kDeepseekV3{"DeepseekV3ForCausalLM"};
constexpr std::array<std::string_view, 1> kGlm4Lite{"Glm4MoeLiteForCausalLM"};

constexpr std::array<std::span<const NameRule>, 5> kNames{names::kLatent, names::kSkeleton, names::kMlp,
                                                          names::kExperts, names::kSelectionAndShared};

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  ModelSpec m = begin_spec(c);
  WISP_TRY(read_latent(c, m.attention));
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

const Family& deepseek_v3_family() {
  static constexpr Family kFamily{"deepseek_v3", kDeepseekV3, kNames, describe, true};
  return kFamily;
}

/// Kimi K2 names its type so and is otherwise DeepSeek V3, also in its architecture's name.
const Family& kimi_k2_family() {
  static constexpr Family kFamily{"kimi_k2", kDeepseekV3, kNames, describe, true};
  return kFamily;
}

const Family& glm4_moe_lite_family() {
  static constexpr Family kFamily{"glm4_moe_lite", kGlm4Lite, kNames, describe, true};
  return kFamily;
}

}  // namespace wisp::model
