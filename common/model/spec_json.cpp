#include "model/spec_json.hpp"

#include <algorithm>
#include <array>

#include "model/limits.hpp"
#include "model/manifest.hpp"

namespace wisp::model {

using kernels::WeightFormat;

Result<WeightFormat> parse_format(const Fields& f) {
  WISP_ASSIGN(const std::string text, f.text("format"));
  if (const auto format = kernels::format_named(text)) return *format;
  return unsupported(f.where() + ": format " + printable(text) + " is unknown");
}

namespace {

/// Names of the values of an enumeration, in their order.
constexpr std::array<std::string_view, 3> kQkNorms{"none", "head", "whole"};
constexpr std::array<std::string_view, 3> kRouterKinds{"softmax_top_k", "sigmoid_top_k", "top_k_softmax"};

template <class Enum, std::size_t N>
Result<Enum> parse_name(const Fields& f, std::string_view key, const std::array<std::string_view, N>& names) {
  WISP_ASSIGN(const std::string text, f.text(key));
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == text) return static_cast<Enum>(i);
  return unsupported(f.where() + ": " + std::string(key) + " " + printable(text) + " is unknown");
}

template <class Enum, std::size_t N>
std::string name_in(Enum e, const std::array<std::string_view, N>& names) {
  return std::string(names[static_cast<std::size_t>(e)]);
}

Result<float> parse_float(const Fields& f, std::string_view key, double min, double max) {
  WISP_ASSIGN(const double d, f.number(key, min, max));
  return static_cast<float>(d);
}

// --- reading ---

Status parse_rope(const Fields& f, RopeSpec& r) {
  WISP_ASSIGN(r.theta, f.number("theta", 1.0, 1e18));
  WISP_ASSIGN(r.width, f.u32("width", 0, kMaxHeadDim));
  WISP_ASSIGN(r.interleaved, f.boolean_or("interleaved", false));
  if (f.has("llama3")) {
    WISP_ASSIGN(const Fields l, f.object("llama3"));
    r.llama3.emplace();
    WISP_ASSIGN(r.llama3->factor, l.number("factor", 0.0, 1e9));
    WISP_ASSIGN(r.llama3->original_length, l.number("original_length", 0.0, 1e12));
    WISP_ASSIGN(r.llama3->low_turns, l.number("low_turns", 0.0, 1e9));
    WISP_ASSIGN(r.llama3->high_turns, l.number("high_turns", 0.0, 1e9));
  }
  if (!f.has("yarn")) return {};
  WISP_ASSIGN(const Fields y, f.object("yarn"));
  r.yarn.emplace();
  WISP_ASSIGN(r.yarn->factor, y.number("factor", 0.0, 1e9));
  WISP_ASSIGN(r.yarn->original_length, y.number("original_length", 0.0, 1e12));
  WISP_ASSIGN(r.yarn->beta_fast, y.number("beta_fast", 0.0, 1e9));
  WISP_ASSIGN(r.yarn->beta_slow, y.number("beta_slow", 0.0, 1e9));
  WISP_ASSIGN(r.yarn->mscale, y.number_or("mscale", 0.0, 0.0, 1e9));
  WISP_ASSIGN(r.yarn->mscale_all_dim, y.number_or("mscale_all_dim", 0.0, 0.0, 1e9));
  WISP_ASSIGN(r.yarn->attention_factor, y.number_or("attention_factor", 0.0, 0.0, 1e9));
  WISP_ASSIGN(r.yarn->truncate, y.boolean_or("truncate", true));
  return {};
}

/// Absent where attention is grouped-query.
Status parse_latent(const Fields& f, LatentSpec& l) {
  if (!f.has("latent")) return {};
  WISP_ASSIGN(const Fields j, f.object("latent"));
  WISP_ASSIGN(l.kv_rank, j.u32("kv_rank", 1, kMaxHeadDim));
  WISP_ASSIGN(l.q_rank, j.u32("q_rank", 0, kMaxWidth));
  WISP_ASSIGN(l.nope, j.u32("nope", 1, kMaxHeadDim));
  WISP_ASSIGN(l.value, j.u32("value", 1, kMaxHeadDim));
  WISP_ASSIGN(l.norm_eps, parse_float(j, "norm_eps", 0.0, 1.0));
  return {};
}

Status parse_layers(const Fields& f, ModelSpec& m) {
  WISP_ASSIGN(const Json* layers, f.array("layers"));
  if (layers->size() > kMaxLayers)
    return f.wrong("layers", "has " + std::to_string(layers->size()) + " entries");
  for (const auto& v : *layers) {
    if (v == "moe") {
      m.layers.push_back({});
    } else if (v.is_number_unsigned() && v.get<std::uint64_t>() <= kMaxWidth) {
      m.layers.push_back({false, v.get<std::uint32_t>(), 0, true});
    } else {
      return f.wrong("layers", "has an entry that is neither \"moe\" nor a width");
    }
  }
  return {};
}

/// Absent where latent attention sees every position.
Status parse_indexer(const Fields& a, IndexerSpec& x) {
  if (!a.has("indexer")) return {};
  WISP_ASSIGN(const Fields f, a.object("indexer"));
  WISP_ASSIGN(x.heads, f.u32("heads", 1, kMaxHeads));
  WISP_ASSIGN(x.head_dim, f.u32("head_dim", 1, kMaxHeadDim));
  WISP_ASSIGN(x.top_k, f.u32("top_k", 1, kMaxPositions));
  WISP_ASSIGN(x.interleaved, f.boolean("interleaved"));
  return {};
}

/// Absent where every layer has an indexer of its own, or none has.
Status parse_indexes(const Fields& f, ModelSpec& m) {
  if (!f.has("indexes")) return {};
  WISP_ASSIGN(const Json* list, f.array("indexes"));
  if (list->size() != m.layers.size())
    return f.wrong("indexes", "has " + std::to_string(list->size()) + " entries, layers " +
                                  std::to_string(m.layers.size()));
  for (std::size_t i = 0; i < list->size(); ++i) {
    if (!(*list)[i].is_boolean()) return f.wrong("indexes", "has an entry that is neither true nor false");
    m.layers[i].indexes = (*list)[i].get<bool>();
  }
  return {};
}

/// Absent where no layer has a window.
Status parse_windows(const Fields& f, ModelSpec& m) {
  if (!f.has("windows")) return {};
  WISP_ASSIGN(const Json* list, f.array("windows"));
  if (list->size() != m.layers.size())
    return f.wrong("windows", "has " + std::to_string(list->size()) + " entries, layers " +
                                  std::to_string(m.layers.size()));
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Json& v = (*list)[i];
    if (!v.is_number_unsigned() || v.get<std::uint64_t>() > kMaxPositions)
      return f.wrong("windows", "has an entry that is no number of positions");
    m.layers[i].window = v.get<std::uint32_t>();
  }
  return {};
}

Status parse_router(const Fields& f, RouterSpec& r) {
  WISP_ASSIGN(r.kind, (parse_name<RouterKind>(f, "kind", kRouterKinds)));
  WISP_ASSIGN(r.experts, f.u32("experts", 1, kMaxExperts));
  WISP_ASSIGN(r.top_k, f.u32("top_k", 1, kMaxExperts));
  WISP_ASSIGN(r.renormalise, f.boolean("renormalise"));
  if (r.kind != RouterKind::kSigmoidTopK) return {};
  WISP_ASSIGN(r.groups, f.u32("groups", 1, kMaxExperts));
  WISP_ASSIGN(r.kept_groups, f.u32("kept_groups", 1, kMaxExperts));
  WISP_ASSIGN(r.scale, parse_float(f, "scale", 0.0, 1e9));
  return {};
}

Status parse_expert(const Fields& f, ModelSpec& m) {
  WISP_ASSIGN(const Fields e, f.object("expert"));
  WISP_ASSIGN(const Fields gate_up, e.object("gate_up"));
  WISP_ASSIGN(const Fields down, e.object("down"));
  ExpertForm form;
  WISP_ASSIGN(form.gate_up, parse_format(gate_up));
  WISP_ASSIGN(form.down, parse_format(down));
  WISP_ASSIGN(form.gate_up_group, gate_up.u32_or("group", 0, 0, kMaxGroup));
  WISP_ASSIGN(form.down_group, down.u32_or("group", 0, 0, kMaxGroup));
  WISP_ASSIGN(m.expert_bias, e.boolean("bias"));
  WISP_ASSIGN(form.ordered, e.boolean_or("ordered", false));
  form.bias = m.expert_bias;
  if (!group_fits(form.gate_up, form.gate_up_group) || !group_fits(form.down, form.down_group))
    return e.wrong("group", "does not go with the formats");
  m.expert = lay_out_expert(m.hidden, m.moe_width, form);
  WISP_ASSIGN(const std::uint64_t payload, e.u64("payload", 0, UINT64_MAX));
  WISP_ASSIGN(const std::uint64_t stride, e.u64("stride", 0, UINT64_MAX));
  if (payload != m.expert.payload || stride != m.expert.stride) {
    return e.wrong("payload", "and stride are " + std::to_string(payload) + " and " + std::to_string(stride) +
                                  ", the shapes give " + std::to_string(m.expert.payload) + " and " +
                                  std::to_string(m.expert.stride));
  }
  return {};
}

}  // namespace

Status parse_spec(const Fields& f, ModelSpec& m) {
  WISP_ASSIGN(m.family, f.text("family"));
  WISP_ASSIGN(m.hidden, f.u32("hidden", 1, kMaxWidth));
  WISP_ASSIGN(m.vocab, f.u32("vocab", 1, kMaxVocab));
  WISP_ASSIGN(m.max_positions, f.u32("max_positions", 1, kMaxPositions));
  WISP_ASSIGN(const double eps, f.number("norm_eps", 0.0, 1.0));
  m.norm_eps = static_cast<float>(eps);
  WISP_ASSIGN(m.tied_head, f.boolean("tied_head"));

  WISP_ASSIGN(const Fields a, f.object("attention"));
  WISP_ASSIGN(m.attention.heads, a.u32("heads", 1, kMaxHeads));
  WISP_ASSIGN(m.attention.kv_heads, a.u32("kv_heads", 1, kMaxHeads));
  WISP_ASSIGN(m.attention.head_dim, a.u32("head_dim", 1, kMaxHeadDim));
  WISP_ASSIGN(m.attention.qk_norm, (parse_name<QkNorm>(a, "qk_norm", kQkNorms)));
  WISP_ASSIGN(m.attention.clip, parse_float(a, "clip", 0.0, 1e9));
  WISP_ASSIGN(m.attention.qkv_bias, a.boolean("qkv_bias"));
  WISP_ASSIGN(m.attention.output_bias, a.boolean("output_bias"));
  WISP_ASSIGN(m.attention.sinks, a.boolean("sinks"));
  WISP_ASSIGN(const Fields rope, a.object("rope"));
  WISP_TRY(parse_rope(rope, m.attention.rope));
  WISP_TRY(parse_latent(a, m.attention.latent));
  WISP_TRY(parse_indexer(a, m.attention.indexer));

  WISP_ASSIGN(const Fields glu, f.object("glu"));
  WISP_ASSIGN(m.glu.limit, parse_float(glu, "limit", 0.0, 1e9));
  WISP_ASSIGN(m.glu.alpha, parse_float(glu, "alpha", 0.0, 1e9));
  WISP_TRY(parse_layers(f, m));
  WISP_TRY(parse_windows(f, m));
  WISP_TRY(parse_indexes(f, m));
  WISP_ASSIGN(m.ordered_width, f.u32_or("ordered_width", 0, 0, kMaxHeads * kMaxHeadDim));
  WISP_ASSIGN(m.draft_head, f.boolean_or("draft_head", false));
  if (m.moe_layers() > 0) {
    WISP_ASSIGN(m.moe_width, f.u32("moe_width", 1, kMaxWidth));
    WISP_ASSIGN(const Fields r, f.object("router"));
    WISP_TRY(parse_router(r, m.router));
    WISP_ASSIGN(const Fields shared, f.object("shared"));
    WISP_ASSIGN(m.shared.width, shared.u32("width", 0, kMaxWidth));
    WISP_ASSIGN(m.shared.gated, shared.boolean("gated"));
    WISP_TRY(parse_expert(f, m));
  }
  auto checked = check_spec(m);
  if (!checked.ok()) return std::move(checked).error().within(f.where());
  return {};
}

// --- writing ---

namespace {

Json rope_json(const RopeSpec& r) {
  Json j{{"theta", r.theta}, {"width", r.width}, {"interleaved", r.interleaved}};
  if (r.yarn) {
    const YarnSpec& y = *r.yarn;
    j["yarn"] = {{"factor", y.factor},
                 {"original_length", y.original_length},
                 {"beta_fast", y.beta_fast},
                 {"beta_slow", y.beta_slow},
                 {"mscale", y.mscale},
                 {"mscale_all_dim", y.mscale_all_dim},
                 {"attention_factor", y.attention_factor},
                 {"truncate", y.truncate}};
  }
  if (r.llama3)
    j["llama3"] = {{"factor", r.llama3->factor},
                   {"original_length", r.llama3->original_length},
                   {"low_turns", r.llama3->low_turns},
                   {"high_turns", r.llama3->high_turns}};
  return j;
}

}  // namespace

Json spec_json(const ModelSpec& m) {
  const auto& a = m.attention;
  Json layers = Json::array();
  for (const auto& l : m.layers) layers.push_back(l.moe ? Json("moe") : Json(l.dense_width));
  Json j{{"family", m.family},
         {"hidden", m.hidden},
         {"vocab", m.vocab},
         {"max_positions", m.max_positions},
         {"norm_eps", m.norm_eps},
         {"tied_head", m.tied_head},
         {"attention",
          {{"heads", a.heads},
           {"kv_heads", a.kv_heads},
           {"head_dim", a.head_dim},
           {"qk_norm", name_in(a.qk_norm, kQkNorms)},
           {"clip", a.clip},
           {"qkv_bias", a.qkv_bias},
           {"output_bias", a.output_bias},
           {"sinks", a.sinks},
           {"rope", rope_json(a.rope)}}},
         {"glu", {{"limit", m.glu.limit}, {"alpha", m.glu.alpha}}},
         {"layers", layers}};
  if (a.is_latent())
    j["attention"]["latent"] = {{"kv_rank", a.latent.kv_rank},
                                {"q_rank", a.latent.q_rank},
                                {"nope", a.latent.nope},
                                {"value", a.latent.value},
                                {"norm_eps", a.latent.norm_eps}};
  if (a.indexer.heads != 0)
    j["attention"]["indexer"] = {{"heads", a.indexer.heads},
                                 {"head_dim", a.indexer.head_dim},
                                 {"top_k", a.indexer.top_k},
                                 {"interleaved", a.indexer.interleaved}};
  if (!std::all_of(m.layers.begin(), m.layers.end(), [](const LayerSpec& l) { return l.indexes; })) {
    Json indexes = Json::array();
    for (const auto& l : m.layers) indexes.push_back(l.indexes);
    j["indexes"] = indexes;
  }
  if (std::any_of(m.layers.begin(), m.layers.end(), [](const LayerSpec& l) { return l.window != 0; })) {
    Json windows = Json::array();
    for (const auto& l : m.layers) windows.push_back(l.window);
    j["windows"] = windows;
  }
  if (m.ordered_width != 0) j["ordered_width"] = m.ordered_width;
  if (m.draft_head) j["draft_head"] = true;
  if (m.moe_layers() == 0) return j;
  const auto& e = m.expert;
  j["moe_width"] = m.moe_width;
  const auto& r = m.router;
  j["router"] = {{"kind", name_in(r.kind, kRouterKinds)},
                 {"experts", r.experts},
                 {"top_k", r.top_k},
                 {"renormalise", r.renormalise}};
  if (r.kind == RouterKind::kSigmoidTopK)
    j["router"].update({{"groups", r.groups}, {"kept_groups", r.kept_groups}, {"scale", r.scale}});
  j["shared"] = {{"width", m.shared.width}, {"gated", m.shared.gated}};
  const auto matrix = [](const ExpertMatrix& x) {
    return x.group == 0 ? Json{{"format", name_of(x.format)}}
                        : Json{{"format", name_of(x.format)}, {"group", x.group}};
  };
  j["expert"] = {{"gate_up", matrix(e.gate)},           {"down", matrix(e.down)}, {"bias", m.expert_bias},
                 {"ordered", e.gate.order_offset != 0}, {"payload", e.payload},   {"stride", e.stride}};
  return j;
}

}  // namespace wisp::model
