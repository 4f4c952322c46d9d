#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures{"MixtralForCausalLM"};

constexpr std::array kOwn{
    NameRule{"model.layers.{L}.block_sparse_moe.gate", Role::kDense, "layers.{L}.router"},
    NameRule{"model.layers.{L}.block_sparse_moe.experts.{E}.w1", Role::kExpert, {}, Part::kGate},
    NameRule{"model.layers.{L}.block_sparse_moe.experts.{E}.w3", Role::kExpert, {}, Part::kUp},
    NameRule{"model.layers.{L}.block_sparse_moe.experts.{E}.w2", Role::kExpert, {}, Part::kDown},
};
constexpr std::array<std::span<const NameRule>, 2> kNames{names::kSkeleton, kOwn};

Result<ModelSpec> describe(const Config& c) {
  const Fields f = c.fields();
  ModelSpec m = begin_spec(c);
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1e6, .partial = 1.0}));
  m.layers.resize(c.layers);
  WISP_ASSIGN(const std::uint32_t window, f.u32_or("sliding_window", 0, 0, kMaxPositions));
  for (LayerSpec& l : m.layers) l.window = window;
  constexpr std::array kExpertKeys{"num_local_experts"};
  WISP_ASSIGN(m.router, read_router(c, kExpertKeys, true));
  m.router.renormalise = true;  // no key decides it in this family
  WISP_ASSIGN(m.moe_width, f.u32("intermediate_size", 1, kMaxWidth));
  return m;
}

}  // namespace

const Family& mixtral_family() {
  static constexpr Family kFamily{"mixtral", kArchitectures, kNames,
                                  describe,  false,          {"SmolLM2-135M-Instruct", false}};
  return kFamily;
}

}  // namespace wisp::model
