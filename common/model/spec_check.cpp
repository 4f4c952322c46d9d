#include <algorithm>
#include <cmath>
#include <string>

#include "model/limits.hpp"
#include "model/manifest.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::model {
namespace {

Status in_range(const char* what, std::uint64_t n, std::uint64_t min, std::uint64_t max) {
  if (n >= min && n <= max) return {};
  return invalid(std::string(what) + " is " + std::to_string(n) + "; allowed is " + std::to_string(min) +
                 " to " + std::to_string(max));
}

Status check_attention(const AttentionSpec& a) {
  WISP_TRY(in_range("heads", a.heads, 1, kMaxHeads));
  WISP_TRY(in_range("kv_heads", a.kv_heads, 1, a.heads));
  WISP_TRY(in_range("head_dim", a.head_dim, 2, kMaxHeadDim));
  if (a.heads % a.kv_heads != 0) return invalid("heads is not a multiple of kv_heads");
  if (a.is_latent()) {
    const LatentSpec& l = a.latent;
    WISP_TRY(in_range("kv_rank", l.kv_rank, 1, kMaxHeadDim));
    WISP_TRY(in_range("q_rank", l.q_rank, 0, kMaxWidth));
    WISP_TRY(in_range("nope", l.nope, 1, kMaxHeadDim));
    WISP_TRY(in_range("value", l.value, 1, kMaxHeadDim));
    if (a.head_dim != l.nope + a.rope.width) return invalid("head_dim is not nope + rope width");
    if (!std::isfinite(l.norm_eps) || l.norm_eps < 0.0f) return invalid("the latent norm_eps is below 0");
  }
  if (a.indexer.heads != 0) {
    WISP_TRY(in_range("indexer heads", a.indexer.heads, 1, kMaxHeads));
    WISP_TRY(in_range("indexer head_dim", a.indexer.head_dim, a.rope.width, kMaxHeadDim));
    WISP_TRY(in_range("indexer top_k", a.indexer.top_k, 1, kMaxPositions));
    if (a.latent.q_rank == 0) return invalid("an indexer without a latent of the queries");
  }
  if (!std::isfinite(a.clip) || a.clip < 0.0f) return invalid("clip is below 0");
  WISP_TRY(in_range("rope width", a.rope.width, 2, a.head_dim));
  if (a.rope.width % 2 != 0) return invalid("rope width is odd");
  if (!std::isfinite(a.rope.theta) || a.rope.theta <= 1.0) return invalid("rope theta is not above 1");
  if (a.rope.yarn) {
    const YarnSpec& y = *a.rope.yarn;
    for (const double d : {y.factor, y.original_length, y.beta_fast, y.beta_slow}) {
      if (!std::isfinite(d) || d <= 0.0) return invalid("a yarn parameter is not above 0");
    }
    for (const double d : {y.mscale, y.mscale_all_dim, y.attention_factor}) {
      if (!std::isfinite(d) || d < 0.0) return invalid("a yarn scale is below 0");
    }
  }
  if (a.rope.llama3) {
    const Llama3Spec& l = *a.rope.llama3;
    if (a.rope.yarn) return invalid("rope is scaled by yarn and by llama3");
    for (const double d : {l.factor, l.original_length, l.low_turns, l.high_turns}) {
      if (!std::isfinite(d) || d <= 0.0) return invalid("a llama3 parameter is not above 0");
    }
    if (l.high_turns <= l.low_turns) return invalid("llama3 high_turns is not above low_turns");
  }
  return {};
}

Status check_router(const RouterSpec& r) {
  WISP_TRY(in_range("experts", r.experts, 1, kMaxExperts));
  WISP_TRY(in_range("top_k", r.top_k, 1, r.experts));
  if (!std::isfinite(r.scale) || r.scale <= 0.0f) return invalid("the router's scale is not above 0");
  WISP_TRY(in_range("router groups", r.groups, 1, std::min(r.experts, kernels::kMaxRouteGroups)));
  WISP_TRY(in_range("kept router groups", r.kept_groups, 1, r.groups));
  if (r.groups == 1) return {};
  if (r.experts % r.groups != 0) return invalid("experts is not a multiple of the router's groups");
  const std::uint32_t size = r.experts / r.groups;
  // A group is judged by its two best.
  if (size < 2) return invalid("a router's group has fewer than two experts");
  WISP_TRY(in_range("top_k", r.top_k, 1, std::uint64_t{size} * r.kept_groups));
  return {};
}

Status check_expert(const ModelSpec& m) {
  const ExpertShape& e = m.expert;
  const ExpertForm form = form_of(e);
  if (!group_fits(form.gate_up, form.gate_up_group) || !group_fits(form.down, form.down_group))
    return invalid("a group of the expert's weights does not go with their format");
  if (form.ordered && m.ordered_width < std::max(m.hidden, m.moe_width))
    return invalid("ordered_width is below that of the experts");
  if (form.bias != m.expert_bias) return invalid("the expert layout has biases where the model has none");
  const ExpertShape want = lay_out_expert(m.hidden, m.moe_width, form);
  const auto same = [](const ExpertMatrix& a, const ExpertMatrix& b) {
    return a.format == b.format && a.rows == b.rows && a.cols == b.cols && a.group == b.group &&
           a.codes_offset == b.codes_offset && a.scales_offset == b.scales_offset &&
           a.bias_offset == b.bias_offset && a.order_offset == b.order_offset;
  };
  if (!same(e.gate, want.gate) || !same(e.up, want.up) || !same(e.down, want.down) ||
      e.payload != want.payload || e.stride != want.stride) {
    return invalid("the expert layout is not the one of this layout version");
  }
  return {};
}

}  // namespace

Status check_spec(const ModelSpec& m) {
  WISP_TRY(in_range("hidden", m.hidden, 1, kMaxWidth));
  WISP_TRY(in_range("vocab", m.vocab, 1, kMaxVocab));
  WISP_TRY(in_range("max_positions", m.max_positions, 1, kMaxPositions));
  WISP_TRY(in_range("layers", m.layers.size(), 1, kMaxLayers));
  if (!std::isfinite(m.norm_eps) || m.norm_eps < 0.0f) return invalid("norm_eps is not a number above 0");
  WISP_TRY(check_attention(m.attention));
  for (const float f : {m.glu.limit, m.glu.alpha})
    if (!std::isfinite(f) || f < 0.0f) return invalid("a number of the glu is below 0");
  if (!m.layers.front().indexes) return invalid("the first layer has no choice of positions to use");
  for (const auto& l : m.layers) {
    if (!l.moe) WISP_TRY(in_range("dense_width", l.dense_width, 1, kMaxWidth));
  }
  if (m.draft_head && (m.layers.size() != 1 || m.moe_layers() != 1))
    return invalid("a draft head is not one layer with experts");
  if (m.moe_layers() == 0) return {};
  WISP_TRY(in_range("moe_width", m.moe_width, 1, kMaxWidth));
  WISP_TRY(check_router(m.router));
  WISP_TRY(in_range("shared expert width", m.shared.width, 0, kMaxWidth));
  WISP_TRY(in_range("experts in all layers", m.expert_count(), 1, kMaxExpertsInAll));
  return check_expert(m);
}

}  // namespace wisp::model
