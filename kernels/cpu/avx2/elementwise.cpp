#include "cpu/avx2/avx2.hpp"
#include "cpu/avx2/vector.hpp"

namespace wisp::kernels::avx2 {

void silu_mul(float* gate, const float* up, std::size_t n) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 one = _mm256_set1_ps(1.0f);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m256 x = load_some(gate, i, n);
    const __m256 silu = _mm256_div_ps(x, _mm256_add_ps(one, exp(_mm256_xor_ps(x, sign))));
    store_some(gate, i, n, _mm256_mul_ps(silu, load_some(up, i, n)));
  }
}

void accumulate(float w, const float* y, float* acc, std::size_t n, bool first) {
  const __m256 weight = _mm256_set1_ps(w);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m256 v = load_some(y, i, n);
    const __m256 sum = first ? _mm256_mul_ps(weight, v) : _mm256_fmadd_ps(weight, v, load_some(acc, i, n));
    store_some(acc, i, n, sum);
  }
}

void add(float* x, const float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    store_some(x, i, n, _mm256_add_ps(load_some(x, i, n), load_some(y, i, n)));
  }
}

}  // namespace wisp::kernels::avx2
