#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures{"OlmoeForCausalLM"};

constexpr std::array<std::span<const NameRule>, 3> kNames{names::kSkeleton, names::kQkNorms, names::kExperts};

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  ModelSpec m = begin_spec(c);
  m.attention.qk_norm = QkNorm::kWhole;
  WISP_ASSIGN(const double clip, f.number_or("clip_qkv", 0.0, 0.0, 1e9));
  m.attention.clip = static_cast<float>(clip);
  WISP_ASSIGN(m.attention.qkv_bias, f.boolean_or("attention_bias", false));
  m.attention.output_bias = m.attention.qkv_bias;
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1e4, .partial = 1.0}));
  m.layers.resize(c.layers);
  constexpr std::array kExpertKeys{"num_experts"};
  WISP_ASSIGN(m.router, read_router(c, kExpertKeys, false));
  WISP_ASSIGN(m.moe_width, f.u32("intermediate_size", 1, kMaxWidth));
  return m;
}

}  // namespace

const Family& olmoe_family() {
  static constexpr Family kFamily{"olmoe", kArchitectures, kNames, describe};
  return kFamily;
}

}  // namespace wisp::model
