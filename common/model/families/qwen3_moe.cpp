#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures{"Qwen3MoeForCausalLM"};

constexpr std::array<std::span<const NameRule>, 4> kNames{names::kSkeleton, names::kQkNorms, names::kMlp,
                                                          names::kExperts};

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  WISP_TRY(refuse_sliding_window(c));
  ModelSpec m = begin_spec(c);
  m.attention.qk_norm = QkNorm::kHead;
  WISP_ASSIGN(m.attention.qkv_bias, f.boolean_or("attention_bias", false));
  m.attention.output_bias = m.attention.qkv_bias;
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1e4, .partial = 1.0}));
  WISP_ASSIGN(m.layers, read_sparse_layers(c));
  if (m.moe_layers() == 0) return m;
  // transformers >= 5 writes num_local_experts for this family.
  constexpr std::array kExpertKeys{"num_local_experts", "num_experts"};
  WISP_ASSIGN(m.router, read_router(c, kExpertKeys, false));
  WISP_ASSIGN(m.moe_width, f.u32("moe_intermediate_size", 1, kMaxWidth));
  return m;
}

}  // namespace

const Family& qwen3_moe_family() {
  static constexpr Family kFamily{"qwen3_moe", kArchitectures, kNames,
                                  describe,    false,          {"pocket-dictionary", true}};
  return kFamily;
}

}  // namespace wisp::model
