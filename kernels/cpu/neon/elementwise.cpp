#include "cpu/neon/neon.hpp"
#include "cpu/neon/vector.hpp"

namespace wisp::kernels::neon {

void silu_mul(float* gate, const float* up, std::size_t n) {
  const float32x4_t one = vdupq_n_f32(1.0f);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const float32x4_t x = load_some(gate, i, n);
    const float32x4_t silu = vdivq_f32(x, vaddq_f32(one, exp(vnegq_f32(x))));
    store_some(gate, i, n, vmulq_f32(silu, load_some(up, i, n)));
  }
}

void accumulate(float w, const float* y, float* acc, std::size_t n, bool first) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const float32x4_t v = load_some(y, i, n);
    const float32x4_t sum = first ? vmulq_n_f32(v, w) : vfmaq_n_f32(load_some(acc, i, n), v, w);
    store_some(acc, i, n, sum);
  }
}

void add(float* x, const float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    store_some(x, i, n, vaddq_f32(load_some(x, i, n), load_some(y, i, n)));
  }
}

}  // namespace wisp::kernels::neon
