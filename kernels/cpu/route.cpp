#include <algorithm>
#include <array>
#include <limits>

#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels {
namespace {

constexpr float kTaken = -std::numeric_limits<float>::infinity();

/// The place of the largest of n numbers, the lowest place on ties, leaving out those that are taken; one is
/// left. NaN is not taken, so broken numbers still give distinct places.
std::uint32_t best_of(const float* x, std::uint32_t n) {
  std::uint32_t best = n;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (x[i] == kTaken) continue;
    if (best == n || x[i] > x[best]) best = i;
  }
  return best;
}

/// Takes the experts of all groups but the best ones out of `choice`.
void keep_groups(const RouteRule& rule, float* choice) {
  const std::uint32_t size = rule.experts / rule.groups;
  std::array<float, kMaxRouteGroups> worth;
  for (std::uint32_t g = 0; g < rule.groups; ++g) {
    float first = kTaken, second = kTaken;
    for (std::uint32_t i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    worth[g] = first + second;
  }
  // Kept if fewer than kept_groups are better; of equals the first is the better one.
  for (std::uint32_t g = 0; g < rule.groups; ++g) {
    std::uint32_t ahead = 0;
    for (std::uint32_t o = 0; o < rule.groups; ++o)
      ahead += worth[o] > worth[g] || (worth[o] == worth[g] && o < g) ? 1 : 0;
    if (ahead >= rule.kept_groups) std::fill_n(choice + g * size, size, kTaken);
  }
}

}  // namespace

void route(const RouteRule& rule, const float* logits, const float* selection, float* scratch,
           std::uint32_t* ids, float* weights, const Kernels& k) {
  const std::uint32_t n = rule.experts, count = std::min(rule.top_k, n);
  float* const score = scratch;
  float* const choice = scratch + n;
  if (rule.kind == RouteKind::kTopKSoftmax) {
    std::copy_n(logits, n, score);
    std::copy_n(logits, n, choice);
  } else if (rule.kind == RouteKind::kSigmoidTopK) {
    for (std::uint32_t e = 0; e < n; ++e) score[e] = canonical_sigmoid(logits[e]);
    for (std::uint32_t e = 0; e < n; ++e) choice[e] = score[e] + selection[e];
    if (rule.groups > 1) keep_groups(rule, choice);
  } else {
    std::copy_n(logits, n, score);
    k.softmax(score, n);
    std::copy_n(score, n, choice);
  }
  // -inf would count as taken.
  if (rule.groups == 1)
    for (std::uint32_t e = 0; e < n; ++e)
      if (choice[e] == kTaken) choice[e] = std::numeric_limits<float>::lowest();
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    const std::uint32_t best = best_of(choice, n);
    ids[rank] = best;
    weights[rank] = score[best];
    choice[best] = kTaken;
  }
  if (rule.kind == RouteKind::kTopKSoftmax) return k.softmax(weights, count);
  if (rule.renormalise && count != 0) {
    float sum = weights[0];
    for (std::uint32_t rank = 1; rank < count; ++rank) sum = sum + weights[rank];
    if (rule.kind == RouteKind::kSigmoidTopK) sum = sum + 1e-20f;
    for (std::uint32_t rank = 0; rank < count; ++rank) weights[rank] = weights[rank] / sum;
  }
  if (rule.kind != RouteKind::kSigmoidTopK) return;
  for (std::uint32_t rank = 0; rank < count; ++rank) weights[rank] = weights[rank] * rule.scale;
}

}  // namespace wisp::kernels
