#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/exp_constants.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::kernels::avx2 {
namespace {

inline constexpr std::size_t kLanes = 8;

/// Lanes [0, n) on, the rest off; n in [0, 8].
inline __m256i first_lanes(std::size_t n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), index);
}

/// Loads x[i .. i+8), lanes at or beyond n as +0 and without touching their memory.
inline __m256 load_some(const float* x, std::size_t i, std::size_t n) {
  if (i + kLanes <= n) return _mm256_loadu_ps(x + i);
  if (i >= n) return _mm256_setzero_ps();
  return _mm256_maskload_ps(x + i, first_lanes(n - i));
}

/// Stores v to x[i .. i+8), leaving what lies at or beyond n.
inline void store_some(float* x, std::size_t i, std::size_t n, __m256 v) {
  if (i + kLanes <= n) {
    _mm256_storeu_ps(x + i, v);
  } else if (i < n) {
    _mm256_maskstore_ps(x + i, first_lanes(n - i), v);
  }
}

/// 2^n by lanes, as power_of_two in ref.
inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/// canonical_exp by lanes: the steps of cpu/ref/exp.cpp one for one.
inline __m256 exp(__m256 x) {
  using namespace exp_constants;
  x = _mm256_min_ps(_mm256_set1_ps(kHighest), x);  // the second operand where either is NaN
  x = _mm256_max_ps(_mm256_set1_ps(kLowest), x);
  const __m256 rounder = _mm256_set1_ps(kRounder);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2e), rounder);
  const __m256 n = _mm256_sub_ps(shifted, rounder);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(kC4), r, _mm256_set1_ps(kC3));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kC2));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kC1));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kC0));
  const __m256 p = _mm256_add_ps(_mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i whole = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(rounder));
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(p, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}

/// The tree of a reduction over lanes 0-7 and 8-15.
inline float sum_lanes(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Asks for the line `ahead` bytes behind `line`, into the second-level cache; never faults, so it may lie
/// beyond the weights. One tile ahead it outruns the hardware, which stops at each 4 KiB page: up to 1.8
/// times the speed on cold weights. Always inline: GCC 12 drops the call of a function that does nothing but
/// prefetch.
inline __attribute__((always_inline)) void prefetch(const std::uint8_t* line, std::size_t ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(line) + ahead), _MM_HINT_T1);
}

/// Stores the 16 rows of a tile to y[row ..], only those below `rows`.
inline void store_rows(float* y, std::uint32_t row, std::uint32_t rows, __m256 low, __m256 high) {
  store_some(y, row, rows, low);
  store_some(y, row + kLanes, rows, high);
}

/// Calls pass<N>(t) for tokens t .. t + N of each pass: as even as four at a time allows.
template <class Pass>
inline void for_passes(std::uint32_t tokens, const Pass& pass) {
  for (std::uint32_t t = 0; t < tokens;) {
    const std::uint32_t left = tokens - t;
    const std::uint32_t n = left <= 4 ? left : left < 8 ? (left + 1) / 2 : 4;
    switch (n) {
      case 1:
        pass.template operator()<1>(t);
        break;
      case 2:
        pass.template operator()<2>(t);
        break;
      case 3:
        pass.template operator()<3>(t);
        break;
      default:
        pass.template operator()<4>(t);
        break;
    }
    t += n;
  }
}

}  // namespace
}  // namespace wisp::kernels::avx2
