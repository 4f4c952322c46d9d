#include <algorithm>

#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels {

void route_softmax_topk(const float* logits, std::uint32_t experts, std::uint32_t top_k, bool renormalise,
                        float* scratch, std::uint32_t* ids, float* weights, const Kernels& k) {
  std::copy_n(logits, experts, scratch);
  k.softmax(scratch, experts);
  const float taken =
      -1.0f;  // below every probability; NaN is not below it, so broken logits still give distinct ids
  const std::uint32_t count = std::min(top_k, experts);
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    std::uint32_t best = experts;
    for (std::uint32_t e = 0; e < experts; ++e) {
      if (scratch[e] < 0.0f) continue;
      if (best == experts || scratch[e] > scratch[best]) best = e;
    }
    ids[rank] = best;
    weights[rank] = scratch[best];
    scratch[best] = taken;
  }
  if (!renormalise || count == 0) return;
  float sum = weights[0];
  for (std::uint32_t rank = 1; rank < count; ++rank) sum = sum + weights[rank];
  for (std::uint32_t rank = 0; rank < count; ++rank) weights[rank] = weights[rank] / sum;
}

}  // namespace wisp::kernels
