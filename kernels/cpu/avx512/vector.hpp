#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/exp_constants.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::kernels::avx512 {
namespace {

/// A vector is as wide as a tile: row r of a tile is lane r.
inline constexpr std::size_t kLanes = kTileRows;

/// Lanes of x[i .. i+16) that lie below n.
inline __mmask16 lanes_below(std::size_t i, std::size_t n) {
  return i + kLanes <= n ? 0xffff : i >= n ? 0 : static_cast<__mmask16>((1u << (n - i)) - 1);
}

/// Loads x[i .. i+16), lanes at or beyond n as +0 and without touching their memory.
inline __m512 load_some(const float* x, std::size_t i, std::size_t n) {
  return _mm512_maskz_loadu_ps(lanes_below(i, n), x + i);
}

/// Stores v to x[i .. i+16), leaving what lies at or beyond n.
inline void store_some(float* x, std::size_t i, std::size_t n, __m512 v) {
  _mm512_mask_storeu_ps(x + i, lanes_below(i, n), v);
}

/// 2^n by lanes, as power_of_two in ref.
inline __m512 power_of_two(__m512i n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

/// canonical_exp by lanes: the steps of cpu/ref/exp.cpp one for one.
inline __m512 exp(__m512 x) {
  using namespace exp_constants;
  x = _mm512_min_ps(_mm512_set1_ps(kHighest), x);  // the second operand where either is NaN
  x = _mm512_max_ps(_mm512_set1_ps(kLowest), x);
  const __m512 rounder = _mm512_set1_ps(kRounder);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(kLog2e), rounder);
  const __m512 n = _mm512_sub_ps(shifted, rounder);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), r);
  __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(kC4), r, _mm512_set1_ps(kC3));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kC2));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kC1));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kC0));
  const __m512 p = _mm512_add_ps(_mm512_fmadd_ps(q, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  const __m512i whole = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(rounder));
  const __m512i half = _mm512_srai_epi32(whole, 1);
  return _mm512_mul_ps(_mm512_mul_ps(p, power_of_two(half)), power_of_two(_mm512_sub_epi32(whole, half)));
}

/// The tree of a reduction over 16 lanes.
inline float sum_lanes(__m512 lanes) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Bytes of a tile from a line to the one that is asked for: as far as a core reads while memory answers.
inline constexpr std::size_t kAhead = 2048;

/// Asks for a line of weights; never faults, so it may lie beyond them. Always inline: GCC 12 drops the call
/// of a function that does nothing but prefetch.
inline __attribute__((always_inline)) void prefetch(const std::uint8_t* line, std::size_t ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(line) + ahead), _MM_HINT_T0);
}

/// How far ahead to ask, `at` bytes into a tile of a plane, where `Tiles` tiles are worked on side by side:
/// the end of a tile is followed by the beginning of the tile whose turn is next, behind its neighbours.
template <std::uint32_t Tiles>
inline std::size_t ahead_of(std::size_t at, std::size_t tile_bytes, std::size_t bytes = kAhead) {
  return at + bytes < tile_bytes ? bytes : bytes + (Tiles - 1) * tile_bytes;
}

inline __m512i load_dwords(const std::uint8_t* p) {
  return _mm512_loadu_si512(p);
}

/// 16 bf16 numbers.
inline __m512 load_bf16(const std::uint8_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/// Scales 2^(s - 127) of 16 bytes; 2^-127 is subnormal.
inline __m512 load_powers(const std::uint8_t* p) {
  const __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i bits = _mm512_slli_epi32(s, 23);
  return _mm512_castsi512_ps(_mm512_mask_set1_epi32(bits, _mm512_testn_epi32_mask(s, s), 0x00400000));
}

/// Stores the 16 rows of a tile to y[row ..], only those below `rows`.
inline void store_rows(float* y, std::uint32_t row, std::uint32_t rows, __m512 v) {
  store_some(y, row, rows, v);
}

/// Calls pass<N>(t) for tokens t .. t + N of each pass, N in {1, 2, 3, 4, 6, 8}.
template <class Pass>
inline void for_passes(std::uint32_t tokens, const Pass& pass) {
  for (std::uint32_t t = 0; t < tokens;) {
    const std::uint32_t left = tokens - t;
    const std::uint32_t n = left >= 8 ? 8 : left >= 6 ? 6 : left == 5 ? 3 : left;
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
      case 4:
        pass.template operator()<4>(t);
        break;
      case 6:
        pass.template operator()<6>(t);
        break;
      default:
        pass.template operator()<8>(t);
        break;
    }
    t += n;
  }
}

}  // namespace
}  // namespace wisp::kernels::avx512
