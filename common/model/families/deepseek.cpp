#include "model/families/name_tables.hpp"
#include "model/limits.hpp"

/// DeepSeek V3 and the models built like it: latent attention, grouped sigmoid routing, shared experts.
namespace wisp::model {
namespace {

constexpr std::array<std::string_view, 1> kDeepseekV3{"DeepseekV3ForCausalLM"};
constexpr std::array<std::string_view, 1> kDeepseekV32{"DeepseekV32ForCausalLM"};
constexpr std::array<std::string_view, 1> kGlm4Lite{"Glm4MoeLiteForCausalLM"};
constexpr std::array<std::string_view, 1> kGlmDsa{"GlmMoeDsaForCausalLM"};

constexpr std::array<std::span<const NameRule>, 5> kNames{names::kLatent, names::kSkeleton, names::kMlp,
                                                          names::kExperts, names::kSelectionAndShared};
constexpr std::array<std::span<const NameRule>, 6> kIndexedNames{
    names::kLatent,  names::kSkeleton,           names::kMlp,
    names::kExperts, names::kSelectionAndShared, names::kIndexer};

Result<ModelSpec> describe(const Config& c) {
  ModelSpec m = begin_spec(c);
  WISP_TRY(read_latent(c, m.attention));
  WISP_TRY(read_sigmoid_mixture(c, m));
  return m;
}

/// With an indexer. These classes ignore rope_interleave: the main heads are always interleaved.
Result<ModelSpec> describe_indexed(const Config& c, bool interleaved) {
  const Fields f = c.fields();
  WISP_ASSIGN(ModelSpec m, describe(c));
  m.attention.rope.interleaved = true;
  IndexerSpec& x = m.attention.indexer;
  WISP_ASSIGN(x.heads, f.u32("index_n_heads", 1, kMaxHeads));
  WISP_ASSIGN(x.head_dim, f.u32("index_head_dim", 1, kMaxHeadDim));
  WISP_ASSIGN(x.top_k, f.u32("index_topk", 1, kMaxPositions));
  x.interleaved = interleaved;
  return m;
}

Result<ModelSpec> describe_v32(const Config& c) {
  return describe_indexed(c, false);
}

/// indexer_types, else index_topk_pattern, else the first layers and then every index_topk_freq-th.
Status read_indexer_layers(const Config& c, ModelSpec& m) {
  const Fields f = c.fields();
  const char* key = f.has("indexer_types") ? "indexer_types" : "index_topk_pattern";
  if (!f.has(key)) {
    WISP_ASSIGN(const std::uint32_t every, f.u32_or("index_topk_freq", 1, 1, kMaxLayers));
    WISP_ASSIGN(const std::uint32_t offset, f.u32_or("index_skip_topk_offset", 0, 0, kMaxLayers));
    for (std::uint32_t i = 0; i < c.layers; ++i)
      m.layers[i].indexes = i + 1 < offset || (i + 1 - offset) % every == 0;
    return {};
  }
  const Json& v = *f.find(key);
  if (!v.is_array() && !v.is_string()) return f.wrong(key, "is neither a list nor a text");
  const std::size_t n = v.is_string() ? v.get_ref<const std::string&>().size() : v.size();
  if (n != c.layers)
    return f.wrong(key,
                   "has " + std::to_string(n) + " entries, num_hidden_layers is " + std::to_string(c.layers));
  for (std::size_t i = 0; i < n; ++i) {
    const Json entry = v.is_string() ? Json(v.get_ref<const std::string&>().substr(i, 1)) : v[i];
    if (entry != "full" && entry != "F" && entry != "shared" && entry != "S")
      return unsupported(f.where() + ": " + key + " " + printable(entry.dump()) +
                         " is not supported; supported: full, shared, F, S");
    m.layers[i].indexes = entry == "full" || entry == "F";
  }
  return {};
}

Result<ModelSpec> describe_glm_dsa(const Config& c) {
  WISP_ASSIGN(ModelSpec m, describe_indexed(c, true));
  WISP_TRY(read_indexer_layers(c, m));
  return m;
}

}  // namespace

const Family& deepseek_v32_family() {
  static constexpr Family kFamily{"deepseek_v32", kDeepseekV32, kIndexedNames,    describe_v32,
                                  true,           {},           names::kDraftHead};
  return kFamily;
}

const Family& glm_moe_dsa_family() {
  static constexpr Family kFamily{"glm_moe_dsa", kGlmDsa, kIndexedNames,    describe_glm_dsa,
                                  true,          {},      names::kDraftHead};
  return kFamily;
}

const Family& deepseek_v3_family() {
  static constexpr Family kFamily{"deepseek_v3", kDeepseekV3, kNames, describe, true, {}, names::kDraftHead};
  return kFamily;
}

/// Kimi K2 names its type so and is otherwise DeepSeek V3, also in its architecture's name.
const Family& kimi_k2_family() {
  static constexpr Family kFamily{"kimi_k2", kDeepseekV3, kNames, describe, true};
  return kFamily;
}

const Family& glm4_moe_lite_family() {
  static constexpr Family kFamily{"glm4_moe_lite", kGlm4Lite, kNames, describe, true, {}, names::kDraftHead};
  return kFamily;
}

}  // namespace wisp::model
