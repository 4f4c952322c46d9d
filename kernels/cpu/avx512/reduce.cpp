#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::avx512 {

static_assert(kSumLanes == kLanes);

// In both sums the lanes beyond n take a +0, which changes no bit: a lane starts at +0 and so is never -0.

void rms_norm(const float* x, const float* weight, float eps, std::uint32_t n, float* y) {
  __m512 lanes = _mm512_setzero_ps();
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m512 v = load_some(x, i, n);
    lanes = _mm512_fmadd_ps(v, v, lanes);
  }
  const float mean = sum_lanes(lanes) / static_cast<float>(n);
  const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  const __m512 r = _mm512_set1_ps(1.0f / root);
  for (std::size_t i = 0; i < n; i += kLanes)
    store_some(y, i, n, _mm512_mul_ps(load_some(weight, i, n), _mm512_mul_ps(load_some(x, i, n), r)));
}

void softmax(float* x, std::uint32_t n) {
  __m512 best = _mm512_set1_ps(-__builtin_inff());
  for (std::size_t i = 0; i < n; i += kLanes)  // keeps `best` where the number is NaN, and beyond n
    best = _mm512_mask_max_ps(best, lanes_below(i, n), load_some(x, i, n), best);
  __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(best), _mm512_extractf32x8_ps(best, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  four = _mm_max_ss(four, _mm_movehdup_ps(four));
  const __m512 maximum = _mm512_broadcastss_ps(four);

  __m512 lanes = _mm512_setzero_ps();
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 live = lanes_below(i, n);
    const __m512 e = exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(live, x + i), maximum));
    _mm512_mask_storeu_ps(x + i, live, e);
    lanes = _mm512_add_ps(lanes, _mm512_maskz_mov_ps(live, e));
  }
  const __m512 sum = _mm512_set1_ps(sum_lanes(lanes));
  for (std::size_t i = 0; i < n; i += kLanes) store_some(x, i, n, _mm512_div_ps(load_some(x, i, n), sum));
}

}  // namespace wisp::kernels::avx512
