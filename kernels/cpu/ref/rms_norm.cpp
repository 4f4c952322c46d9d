#include <cmath>

#include "cpu/ref/lanes.hpp"
#include "cpu/ref/ref.hpp"

namespace wisp::kernels::ref {

void rms_norm(const float* x, const float* weight, float eps, std::uint32_t n, float* y) {
  float lanes[kSumLanes] = {};
  for (std::uint32_t i = 0; i < n; ++i) lanes[i % kSumLanes] = std::fma(x[i], x[i], lanes[i % kSumLanes]);
  const float mean = sum_lanes(lanes) / static_cast<float>(n);
  const float r = 1.0f / std::sqrt(mean + eps);
  for (std::uint32_t i = 0; i < n; ++i) y[i] = weight[i] * (x[i] * r);
}

}  // namespace wisp::kernels::ref
