#include "model/families/name_tables.hpp"

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
  WISP_TRY(read_sigmoid_mixture(c, m));
  return m;
}

}  // namespace

const Family& glm4_moe_family() {
  static constexpr Family kFamily{"glm4_moe", kArchitectures, kNames, describe, false, {}, names::kDraftHead};
  return kFamily;
}

}  // namespace wisp::model
