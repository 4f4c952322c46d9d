#include <cmath>
#include <cstring>

#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/int8_products.hpp"

namespace wisp::kernels::avx512 {
namespace {

/// Without VNNI: two products to a 16-bit lane, then two of those to a lane. Only small codes are safe from
/// saturation, so others are taken as two nibbles.
struct WideningDot {
  static __m512i pairs(__m512i u, __m512i x, int weight) {
    return _mm512_madd_epi16(_mm512_maddubs_epi16(u, x), _mm512_set1_epi16(static_cast<short>(weight)));
  }
  static __m512i add_small(__m512i sum, __m512i u, __m512i x) {
    return _mm512_add_epi32(sum, pairs(u, x, 1));
  }
  static __m512i add(__m512i sum, __m512i u, __m512i x) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(u, 4), nibble);
    return _mm512_add_epi32(add_small(sum, _mm512_and_si512(u, nibble), x), pairs(high, x, 16));
  }
};

/// Codes of 16 columns.
inline __m512i round_codes(__m512 x, __m512 inverse) {
  const __m512 scaled = _mm512_mul_ps(x, inverse);
  const __m512 held = _mm512_max_ps(_mm512_min_ps(scaled, _mm512_set1_ps(127.0f)), _mm512_set1_ps(-127.0f));
  return _mm512_cvtps_epi32(held);
}

}  // namespace

void quantise(WeightFormat f, const float* x, std::size_t x_stride, std::uint32_t rows, std::uint32_t cols,
              const Int8Rows& out) {
  constexpr std::int32_t kInfinite = 0x7f800000;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const bool apart = columns_per_dword(f) == 8;
  // Of 8 bytes: the even columns, then the odd ones.
  const __m128i parting = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  for (std::uint32_t r = 0; r < rows; ++r) {
    const float* row = x + r * x_stride;
    for (std::uint32_t g = 0; g < out.groups; ++g) {
      const std::size_t at = out.at(r, g), first = std::size_t{g} * kGroupColumns;
      const __m512 part[2] = {load_some(row, first, cols), load_some(row, first + kLanes, cols)};
      // Magnitudes order as their bits do, NaN above all.
      const std::int32_t most = _mm512_reduce_max_epi32(
          _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(part[0]), magnitude),
                           _mm512_and_si512(_mm512_castps_si512(part[1]), magnitude)));
      const bool finite = most < kInfinite;
      float m;
      std::memcpy(&m, &most, 4);
      const float inverse = 127.0f / m;
      const bool any = finite && std::isfinite(inverse);
      out.scales[at] = finite ? (any ? m / 127.0f : 0.0f) : std::nanf("");
      std::int8_t* codes = out.codes + at * kGroupColumns;
      if (!any) {
        std::memset(codes, 0, kGroupColumns);
        out.offsets[at] = 0;
        continue;
      }
      const __m512 factor = _mm512_set1_ps(inverse);
      const __m512i wide[2] = {round_codes(part[0], factor), round_codes(part[1], factor)};
      for (std::size_t i = 0; i < 2; ++i) {
        const __m128i bytes = _mm512_cvtepi32_epi8(wide[i]);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i * kLanes),
                         apart ? _mm_shuffle_epi8(bytes, parting) : bytes);
      }
      out.offsets[at] = -code_lift(f) * _mm512_reduce_add_epi32(_mm512_add_epi32(wide[0], wide[1]));
    }
  }
}

void linear_int8(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
                 std::uint32_t tile_begin, std::uint32_t tile_end) {
  multiply<WideningDot>(w, x, tokens, y, y_stride, tile_begin, tile_end);
}

}  // namespace wisp::kernels::avx512
