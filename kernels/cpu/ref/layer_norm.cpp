#include <cmath>

#include "cpu/ref/lanes.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels {

void layer_norm(float* x, const float* weight, const float* bias, float eps, std::uint32_t n) {
  const float mean = canonical_sum(x, n) / static_cast<float>(n);
  float lanes[kSumLanes] = {};
  for (std::uint32_t i = 0; i < n; ++i) {
    x[i] = x[i] - mean;
    lanes[i % kSumLanes] = std::fma(x[i], x[i], lanes[i % kSumLanes]);
  }
  const float variance = ref::sum_lanes(lanes) / static_cast<float>(n);
  const float r = 1.0f / std::sqrt(variance + eps);
  for (std::uint32_t i = 0; i < n; ++i) x[i] = weight[i] * (x[i] * r) + bias[i];
}

}  // namespace wisp::kernels
