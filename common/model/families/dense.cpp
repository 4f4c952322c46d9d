#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

/// Families without experts: models that draft for larger ones of the same vocabulary, or run alone.
namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kQwen3{"Qwen3ForCausalLM"};
constexpr std::array<std::string_view, 1> kLlama{"LlamaForCausalLM"};
constexpr std::array<std::string_view, 1> kMistral{"MistralForCausalLM"};

constexpr std::array<std::span<const NameRule>, 2> kNames{names::kSkeleton, names::kMlp};
constexpr std::array<std::span<const NameRule>, 3> kNormedNames{names::kSkeleton, names::kQkNorms,
                                                                names::kMlp};

/// What the three share: grouped-query attention, and in every layer one MLP of intermediate_size.
Result<ModelSpec> begin_dense(const Config& c) {
  ModelSpec m = begin_spec(c);
  WISP_ASSIGN(m.attention.rope, read_rope(c, c.head_dim, {.theta = 1e4, .partial = 1.0}));
  WISP_ASSIGN(const std::uint32_t width, c.fields().u32("intermediate_size", 1, kMaxWidth));
  m.layers.assign(c.layers, LayerSpec{.moe = false, .dense_width = width});
  return m;
}

Status read_attention_bias(const Config& c, AttentionSpec& a) {
  WISP_ASSIGN(a.qkv_bias, c.fields().boolean_or("attention_bias", false));
  a.output_bias = a.qkv_bias;
  return {};
}

Result<ModelSpec> describe_qwen3(const Config& c) {
  WISP_TRY(refuse_sliding_window(c));
  // Every release has the key; without it transformers takes 128, not hidden / heads.
  WISP_TRY(c.fields().u32("head_dim", 2, kMaxHeadDim));
  WISP_ASSIGN(ModelSpec m, begin_dense(c));
  m.attention.qk_norm = QkNorm::kHead;
  WISP_TRY(read_attention_bias(c, m.attention));
  return m;
}

Result<ModelSpec> describe_llama(const Config& c) {
  WISP_ASSIGN(ModelSpec m, begin_dense(c));
  WISP_TRY(read_attention_bias(c, m.attention));
  WISP_ASSIGN(const bool biased, c.fields().boolean_or("mlp_bias", false));
  if (biased) return unsupported(c.where + ": mlp_bias true is not supported; supported: false");
  return m;
}

Result<ModelSpec> describe_mistral(const Config& c) {
  const Fields f = c.fields();
  WISP_ASSIGN(ModelSpec m, begin_dense(c));
  // Null is none; where the key is missing, transformers takes what the first release had.
  const std::uint32_t unsaid = f.json().contains("sliding_window") ? 0 : 4096;
  WISP_ASSIGN(const std::uint32_t window, f.u32_or("sliding_window", unsaid, 0, kMaxPositions));
  for (LayerSpec& l : m.layers) l.window = window;
  return m;
}

}  // namespace

const Family& qwen3_family() {
  static constexpr Family kFamily{"qwen3", kQwen3, kNormedNames, describe_qwen3};
  return kFamily;
}

const Family& llama_family() {
  static constexpr Family kFamily{"llama", kLlama, kNames, describe_llama};
  return kFamily;
}

const Family& mistral_family() {
  static constexpr Family kFamily{"mistral", kMistral, kNames, describe_mistral};
  return kFamily;
}

}  // namespace wisp::model
