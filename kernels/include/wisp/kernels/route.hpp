#pragma once
#include <cstdint>

namespace wisp::kernels {

struct Kernels;

inline constexpr std::uint32_t kMaxRouteGroups = 256;

enum class RouteKind : std::uint8_t {
  kSoftmaxTopK,  ///< softmax over all experts, top-k: R1 renormalised, R2 not
  kSigmoidTopK,  ///< R4
  kTopKSoftmax,  ///< R3: softmax over the chosen logits
};

/// How a row's experts are chosen and weighed (spec 2.7).
struct RouteRule {
  RouteKind kind = RouteKind::kSoftmaxTopK;
  std::uint32_t experts = 0;
  std::uint32_t top_k = 0;
  bool renormalise = true;
  // R4 alone
  std::uint32_t groups =
      1;  ///< at most kMaxRouteGroups, of equal size; a group is judged by the sum of its two best
  std::uint32_t kept_groups = 1;  ///< groups that may be chosen from
  float scale = 1.0f;             ///< of the weights
};
/// logits [experts] -> ids and weights [top_k], in rank order: descending by what is chosen by, id ascending
/// on ties. `selection` [experts]: R4 chooses by score + selection and weighs by the score; ignored
/// elsewhere. `scratch`: [2 * experts].
void route(const RouteRule& rule, const float* logits, const float* selection, float* scratch,
           std::uint32_t* ids, float* weights, const Kernels& k);

}  // namespace wisp::kernels
