#include <cmath>

#include "cpu/neon/neon.hpp"
#include "cpu/neon/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::neon {

// In both sums the lanes beyond n take a +0, which changes no bit: a lane starts at +0 and so is never -0.

void rms_norm(const float* x, const float* weight, float eps, std::uint32_t n, float* y) {
  Sixteen squares = splat(0.0f);
  for (std::size_t i = 0; i < n; i += kSumLanes) {
    for (std::uint32_t j = 0; j < kVectors; ++j) {
      const float32x4_t v = load_some(x, i + j * kLanes, n);
      squares.v[j] = vfmaq_f32(squares.v[j], v, v);
    }
  }
  const float mean = sum_lanes(squares) / static_cast<float>(n);
  const float r = 1.0f / std::sqrt(mean + eps);
  for (std::size_t i = 0; i < n; i += kLanes) {
    store_some(y, i, n, vmulq_f32(load_some(weight, i, n), vmulq_n_f32(load_some(x, i, n), r)));
  }
}

void softmax(float* x, std::uint32_t n) {
  const float lowest = -__builtin_inff();
  float32x4_t best = vdupq_n_f32(lowest);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float32x4_t v = vld1q_f32(x + i);
    best = vbslq_f32(vcgtq_f32(v, best), v, best);  // keeps `best` where v is NaN
  }
  float maximum = vmaxvq_f32(best);
  for (; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;

  const float32x4_t most = vdupq_n_f32(maximum);
  Sixteen sum = splat(0.0f);
  for (i = 0; i < n; i += kSumLanes) {
    for (std::uint32_t j = 0; j < kVectors; ++j) {
      const std::size_t at = i + j * kLanes;
      store_some(x, at, n, exp(vsubq_f32(load_some(x, at, n), most)));
      sum.v[j] = vaddq_f32(sum.v[j], load_some(x, at, n));
    }
  }
  const float32x4_t whole = vdupq_n_f32(sum_lanes(sum));
  for (i = 0; i < n; i += kLanes) store_some(x, i, n, vdivq_f32(load_some(x, i, n), whole));
}

}  // namespace wisp::kernels::neon
