#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/vector.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::kernels::avx512 {
namespace {

constexpr std::size_t kDwordBytes = kTileRows * 4;

/// How the coded formats become floats. A format has
///   kFormat
///   __m512 column<C>(dword, zero): column C of the 16 rows, c or c - z
///   __m512 scales(p), zeros(p): of the 16 rows for one group
struct Nibbles {
  template <std::uint32_t C>
  static __m512 looked_up(__m512i dword, __m512 table) {  // the permutation looks at four bits of its index
    return _mm512_permutexvar_ps(C == 0 ? dword : _mm512_srli_epi32(dword, 4 * C), table);
  }
  static __m512 zeros(const std::uint8_t* /*p*/) { return _mm512_setzero_ps(); }
};

struct Int4 : Nibbles {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  template <std::uint32_t C>
  static __m512 column(__m512i dword, __m512 /*zero*/) {
    return looked_up<C>(dword, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m512 scales(const std::uint8_t* p) { return load_bf16(p); }
};

struct Mxfp4 : Nibbles {
  static constexpr WeightFormat kFormat = WeightFormat::kMxfp4;
  template <std::uint32_t C>
  static __m512 column(__m512i dword, __m512 /*zero*/) {
    return looked_up<C>(dword, _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,  //
                                              -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f));
  }
  static __m512 scales(const std::uint8_t* p) { return load_powers(p); }
};

struct Int4Zero : Nibbles {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4Zero;
  template <std::uint32_t C>
  static __m512 column(__m512i dword, __m512 zero) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_sub_ps(looked_up<C>(dword, table), zero);
  }
  static __m512i zero_bits() { return _mm512_set1_epi32(static_cast<int>(kZeroPointBits)); }
  static __m512 scales(const std::uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits(), load_dwords(p)));
  }
  static __m512 zeros(const std::uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(zero_bits(), load_dwords(p)));
  }
};

struct Bytes {
  /// Byte C of each dword in the highest place.
  template <std::uint32_t C>
  static __m512i high(__m512i dword) {
    return C == 3 ? dword : _mm512_slli_epi32(dword, 24 - 8 * C);
  }
  static __m512 zeros(const std::uint8_t* /*p*/) { return _mm512_setzero_ps(); }
};

struct Int8 : Bytes {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  template <std::uint32_t C>
  static __m512 column(__m512i dword, __m512 /*zero*/) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(high<C>(dword), 24));
  }
  static __m512 scales(const std::uint8_t* p) { return load_bf16(p); }
};

struct Fp8 : Bytes {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  /// The sign stays above, exponent and fraction come to where f32 has its own; the factor moves the bias.
  template <std::uint32_t C>
  static __m512 column(__m512i dword, __m512 /*zero*/) {
    const __m512i spread = _mm512_srai_epi32(high<C>(dword), 4);
    const __m512i bits = _mm512_and_si512(spread, _mm512_set1_epi32(static_cast<int>(0x87f00000u)));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
  }
  static __m512 scales(const std::uint8_t* p) {
    float d;
    __builtin_memcpy(&d, p, sizeof d);
    return _mm512_set1_ps(d);
  }
};

/// Columns C, C + 1, .. of one dword of `Tiles` tiles, those below `live`, ascending.
template <class Format, std::uint32_t C, std::uint32_t Tiles, std::uint32_t Tokens>
inline __attribute__((always_inline)) void advance(const __m512i (&dwords)[Tiles],
                                                   const __m512 (&zeros)[Tiles], const float* x,
                                                   std::size_t x_stride, std::uint32_t live,
                                                   __m512 (&t)[Tiles][Tokens]) {
  if constexpr (C < columns_per_dword(Format::kFormat)) {
    if (C >= live) return;
    __m512 wide[Tiles];
    for (std::uint32_t i = 0; i < Tiles; ++i) wide[i] = Format::template column<C>(dwords[i], zeros[i]);
    for (std::uint32_t n = 0; n < Tokens; ++n) {
      const __m512 xk = _mm512_set1_ps(x[n * x_stride + C]);
      for (std::uint32_t i = 0; i < Tiles; ++i) t[i][n] = _mm512_fmadd_ps(wide[i], xk, t[i][n]);
    }
    advance<Format, C + 1, Tiles, Tokens>(dwords, zeros, x, x_stride, live, t);
  }
}

/// `Tiles` adjacent tiles times `Tokens` tokens. The chains of a group are `Tiles * Tokens` vectors side by
/// side; it takes some eight to hide the depth of the adder.
template <class Format, std::uint32_t Tiles, std::uint32_t Tokens>
void tiles_of_tokens(const WeightView& w, std::uint32_t tile, const float* x, std::size_t x_stride, float* y,
                     std::size_t y_stride) {
  constexpr std::uint32_t kColumns = columns_per_dword(Format::kFormat);
  constexpr std::size_t kScaleRow =
      traits_of(Format::kFormat).scale_rows * traits_of(Format::kFormat).scale_bytes;
  const std::size_t tile_bytes = dwords_of(Format::kFormat, w.cols) * kDwordBytes;
  const std::size_t tile_scales = tile_scale_bytes(Format::kFormat, w.cols, w.group);
  const std::uint8_t* tile_codes = w.codes + tile * tile_bytes;
  const std::uint8_t* scales = w.scales + tile * tile_scales;
  std::size_t at = 0;
  __m512 sum[Tiles][Tokens];
  for (auto& of_tile : sum)
    for (auto& s : of_tile) s = _mm512_setzero_ps();
  for (std::uint32_t k = 0; k < w.cols;) {
    const std::uint32_t begin = k;
    const std::uint32_t end = w.cols - begin < kBlockColumns ? w.cols : begin + kBlockColumns;
    __m512 a[Tiles][Tokens];
    for (auto& of_tile : a)
      for (auto& s : of_tile) s = _mm512_setzero_ps();
    while (k < end) {
      const std::uint32_t group_end = end - k < kGroupColumns ? end : k + kGroupColumns;
      const std::size_t of_group = std::size_t{k / w.group} * kScaleRow;
      __m512 t[Tiles][Tokens], zeros[Tiles];
      for (std::uint32_t i = 0; i < Tiles; ++i) {
        zeros[i] = Format::zeros(scales + i * tile_scales + of_group);
        for (auto& s : t[i]) s = _mm512_setzero_ps();
      }
      while (k < group_end) {
        const std::size_t ahead = ahead_of<Tiles>(at, tile_bytes);
        __m512i dwords[Tiles];
        for (std::uint32_t i = 0; i < Tiles; ++i) {
          prefetch(tile_codes + i * tile_bytes + at, ahead);
          dwords[i] = load_dwords(tile_codes + i * tile_bytes + at);
        }
        const std::uint32_t live = group_end - k < kColumns ? group_end - k : kColumns;
        advance<Format, 0, Tiles, Tokens>(dwords, zeros, x + k, x_stride, live, t);
        at += kDwordBytes;
        k += live;
      }
      for (std::uint32_t i = 0; i < Tiles; ++i) {
        const __m512 d = Format::scales(scales + i * tile_scales + of_group);
        for (std::uint32_t n = 0; n < Tokens; ++n) a[i][n] = _mm512_fmadd_ps(t[i][n], d, a[i][n]);
      }
    }
    for (std::uint32_t i = 0; i < Tiles; ++i)
      for (std::uint32_t n = 0; n < Tokens; ++n)
        sum[i][n] = begin == 0 ? a[i][n] : _mm512_add_ps(sum[i][n], a[i][n]);
  }
  for (std::uint32_t i = 0; i < Tiles; ++i)
    for (std::uint32_t n = 0; n < Tokens; ++n)
      store_rows(y + n * y_stride, (tile + i) * kTileRows, w.rows, sum[i][n]);
}

template <class Format>
void tiles_of_codes(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                    std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  std::uint32_t tile = tile_begin;
  const auto pass = [&]<std::uint32_t Tiles>() {
    for_passes(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
      if constexpr (Tiles * N <= 16)
        tiles_of_tokens<Format, Tiles, N>(w, tile, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
    });
  };
  if (tokens == 1)
    for (; tile + 8 <= tile_end; tile += 8) pass.template operator()<8>();
  if (tokens <= 4)
    for (; tile + 4 <= tile_end; tile += 4) pass.template operator()<4>();
  for (; tile + 2 <= tile_end; tile += 2) pass.template operator()<2>();
  if (tile < tile_end) pass.template operator()<1>();
}

}  // namespace

void linear_coded(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                  std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  const auto as = [&]<class Format>() {
    tiles_of_codes<Format>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
  };
  switch (w.format) {
    case WeightFormat::kInt4:
      return as.operator()<Int4>();
    case WeightFormat::kInt4Zero:
      return as.operator()<Int4Zero>();
    case WeightFormat::kMxfp4:
      return as.operator()<Mxfp4>();
    case WeightFormat::kInt8:
      return as.operator()<Int8>();
    case WeightFormat::kFp8:
      return as.operator()<Fp8>();
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      break;
  }
}

}  // namespace wisp::kernels::avx512
