#include "cpu/avx2/avx2.hpp"
#include "cpu/avx2/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::avx2 {

// In both sums the lanes beyond n take a +0, which changes no bit: a lane starts at +0 and so is never -0.

void rms_norm(const float* x, const float* weight, float eps, std::uint32_t n, float* y) {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  for (std::size_t i = 0; i < n; i += kSumLanes) {
    const __m256 a = load_some(x, i, n);
    const __m256 b = load_some(x, i + kLanes, n);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  const float mean = sum_lanes(low, high) / static_cast<float>(n);
  const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  const __m256 r = _mm256_set1_ps(1.0f / root);
  for (std::size_t i = 0; i < n; i += kLanes) {
    store_some(y, i, n, _mm256_mul_ps(load_some(weight, i, n), _mm256_mul_ps(load_some(x, i, n), r)));
  }
}

void softmax(float* x, std::uint32_t n) {
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 best = lowest;
  for (std::size_t i = 0; i < n; i += kLanes) {
    __m256 v = load_some(x, i, n);
    if (i + kLanes > n) v = _mm256_blendv_ps(lowest, v, _mm256_castsi256_ps(first_lanes(n - i)));
    best = _mm256_max_ps(v, best);  // keeps `best` where v is NaN
  }
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(best), _mm256_extractf128_ps(best, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  four = _mm_max_ss(four, _mm_movehdup_ps(four));
  const __m256 maximum = _mm256_broadcastss_ps(four);

  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  for (std::size_t i = 0; i < n; i += kSumLanes) {
    store_some(x, i, n, exp(_mm256_sub_ps(load_some(x, i, n), maximum)));
    store_some(x, i + kLanes, n, exp(_mm256_sub_ps(load_some(x, i + kLanes, n), maximum)));
    low = _mm256_add_ps(low, load_some(x, i, n));
    high = _mm256_add_ps(high, load_some(x, i + kLanes, n));
  }
  const __m256 sum = _mm256_set1_ps(sum_lanes(low, high));
  for (std::size_t i = 0; i < n; i += kLanes) store_some(x, i, n, _mm256_div_ps(load_some(x, i, n), sum));
}

}  // namespace wisp::kernels::avx2
