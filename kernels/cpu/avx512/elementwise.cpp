#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/vector.hpp"

namespace wisp::kernels::avx512 {

void silu_mul(float* gate, const float* up, std::size_t n) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  const __m512 one = _mm512_set1_ps(1.0f);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m512 x = load_some(gate, i, n);
    const __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, exp(_mm512_xor_ps(x, sign))));
    store_some(gate, i, n, _mm512_mul_ps(silu, load_some(up, i, n)));
  }
}

void accumulate(float w, const float* y, float* acc, std::size_t n, bool first) {
  const __m512 weight = _mm512_set1_ps(w);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m512 v = load_some(y, i, n);
    const __m512 sum = first ? _mm512_mul_ps(weight, v) : _mm512_fmadd_ps(weight, v, load_some(acc, i, n));
    store_some(acc, i, n, sum);
  }
}

void add(float* x, const float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes)
    store_some(x, i, n, _mm512_add_ps(load_some(x, i, n), load_some(y, i, n)));
}

}  // namespace wisp::kernels::avx512
