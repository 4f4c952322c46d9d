#pragma once
#include <cstring>

#include "cpu/avx512/vector.hpp"
#include "wisp/kernels/int8_rows.hpp"

/// Products of the `fast` profile. The sums of a group are whole numbers, so their order is free; codes are
/// lifted to unsigned bytes (code_lift), and sums begin with what that adds too much. `Dot` adds the products
/// of four unsigned and four signed bytes to each lane:
///   add(sum, u, x): any u;  add_small(sum, u, x): u <= 31.
namespace wisp::kernels::avx512 {
namespace {

constexpr std::size_t kDwordBytes = kTileRows * 4;
constexpr std::uint32_t kGroupsInBlock = kBlockColumns / kGroupColumns;
/// Four columns are multiplied at once.
constexpr std::uint32_t kQuads = kGroupColumns / 4;

inline __m512i quad_of(const std::int8_t* x, std::uint32_t quad) {
  std::int32_t four;
  std::memcpy(&four, x + 4 * quad, 4);
  return _mm512_set1_epi32(four);
}

/// Nibbles: each dword gives a quad of even columns and one of odd columns.
struct NibbleQuads {
  static constexpr bool kSmall = true;
  static constexpr std::uint32_t kPerDword = 2;
  static void unpack(__m512i dword, __m512i* quads) {
    const __m512i nibble = _mm512_set1_epi8(15);
    quads[0] = _mm512_and_si512(dword, nibble);
    quads[1] = _mm512_and_si512(_mm512_srli_epi16(dword, 4), nibble);
  }
};

struct Int4Quads : NibbleQuads {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr float kUnit = 1.0f;
  static __m512 scales(const std::uint8_t* p) { return load_bf16(p); }
  static __m512i start(const std::uint8_t* /*scales*/, __m512i offset) { return offset; }
};

struct Int4ZeroQuads : NibbleQuads {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4Zero;
  static constexpr float kUnit = 1.0f;
  static __m512i zero_bits() { return _mm512_set1_epi32(31); }
  static __m512 scales(const std::uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits(), load_dwords(p)));
  }
  static __m512i start(const std::uint8_t* scales, __m512i sum) {
    const __m512i zeros = _mm512_and_si512(load_dwords(scales), zero_bits());
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_mullo_epi32(zeros, sum));
  }
};

/// Twice the E2M1 numbers are whole; 12 above them they are not negative.
struct Mxfp4Quads : NibbleQuads {
  static constexpr WeightFormat kFormat = WeightFormat::kMxfp4;
  static constexpr float kUnit = 0.5f;
  static void unpack(__m512i dword, __m512i* quads) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    NibbleQuads::unpack(dword, quads);
    quads[0] = _mm512_shuffle_epi8(table, quads[0]);
    quads[1] = _mm512_shuffle_epi8(table, quads[1]);
  }
  static __m512 scales(const std::uint8_t* p) { return load_powers(p); }
  static __m512i start(const std::uint8_t* /*scales*/, __m512i offset) { return offset; }
};

struct Int8Quads {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr bool kSmall = false;
  static constexpr std::uint32_t kPerDword = 1;
  static constexpr float kUnit = 1.0f;
  static void unpack(__m512i dword, __m512i* quads) {
    quads[0] = _mm512_xor_si512(dword, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  static __m512 scales(const std::uint8_t* p) { return load_bf16(p); }
  static __m512i start(const std::uint8_t* /*scales*/, __m512i offset) { return offset; }
};

/// Where the planes of the tiles lie that are worked on side by side.
template <class Format>
struct TilePlanes {
  static constexpr std::uint32_t kDwords = kGroupColumns / columns_per_dword(Format::kFormat);
  static constexpr std::size_t kGroupBytes = kDwords * kDwordBytes;
  static constexpr std::size_t kScaleRow =
      traits_of(Format::kFormat).scale_rows * traits_of(Format::kFormat).scale_bytes;
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::size_t tile_bytes;
  std::size_t tile_scales;
  std::uint32_t dwords;
  std::uint32_t per_scale;  ///< groups of columns that share a scale

  TilePlanes(const WeightView& w, std::uint32_t tile)
      : tile_bytes(dwords_of(Format::kFormat, w.cols) * kDwordBytes),
        tile_scales(tile_scale_bytes(Format::kFormat, w.cols, w.group)),
        dwords(dwords_of(Format::kFormat, w.cols)),
        per_scale(w.group / kGroupColumns) {
    codes = w.codes + tile * tile_bytes;
    scales = w.scales + tile * tile_scales;
  }
  const std::uint8_t* codes_of(std::uint32_t i, std::uint32_t g) const {
    return codes + i * tile_bytes + g * kGroupBytes;
  }
  /// Of a group within the scales of its tile; one division for all tiles.
  std::size_t scale_place(std::uint32_t g) const { return g / per_scale * kScaleRow; }
  const std::uint8_t* scales_at(std::uint32_t i, std::size_t place) const {
    return scales + i * tile_scales + place;
  }
  bool whole(std::uint32_t g) const { return (g + 1) * kDwords <= dwords; }
  template <std::uint32_t Tiles>
  std::size_t ahead(std::uint32_t g) const {
    return ahead_of<Tiles>(g * kGroupBytes, tile_bytes);
  }
};

/// One group of one tile as eight quads. `Whole`: none of its columns lies behind the last; those that do are
/// 0 in the activations too. Asks for what comes `ahead`.
template <bool Whole, class Format>
inline __attribute__((always_inline)) void load_quads(const TilePlanes<Format>& planes, std::uint32_t i,
                                                      std::uint32_t g, std::size_t ahead,
                                                      __m512i (&quads)[kQuads]) {
  constexpr std::uint32_t kDwords = TilePlanes<Format>::kDwords;
  const std::uint8_t* codes = planes.codes_of(i, g);
  const std::uint32_t live = Whole ? kDwords : planes.dwords - g * kDwords;
#pragma GCC unroll 8
  for (std::uint32_t d = 0; d < kDwords; ++d) {
    prefetch(codes + d * kDwordBytes, ahead);
    const __m512i dword = d < live ? load_dwords(codes + d * kDwordBytes) : _mm512_setzero_si512();
    Format::unpack(dword, quads + d * Format::kPerDword);
  }
}

template <class Format, class Dot>
inline __m512i dot(__m512i sum, __m512i u, __m512i x) {
  return Format::kSmall ? Dot::add_small(sum, u, x) : Dot::add(sum, u, x);
}

/// block <- fma(t_g, d d_x, block).
template <class Format>
inline __m512 fold_group(__m512i sum, __m512 d, float d_x, __m512 block) {
  __m512 t = _mm512_cvtepi32_ps(sum);
  if (Format::kUnit != 1.0f) t = _mm512_mul_ps(t, _mm512_set1_ps(Format::kUnit));
  return _mm512_fmadd_ps(t, _mm512_mul_ps(d, _mm512_set1_ps(d_x)), block);
}

/// block <- the same and group g, of `Tiles` tiles times one row.
template <bool Whole, class Format, class Dot, std::uint32_t Tiles>
inline __attribute__((always_inline)) void row_times_group(const TilePlanes<Format>& planes,
                                                           const Int8Rows& x, std::uint32_t g,
                                                           __m512 (&block)[Tiles]) {
  const std::size_t at = x.at(0, g), scale_place = planes.scale_place(g);
  const std::size_t ahead = planes.template ahead<Tiles>(g);
  const std::size_t scales_ahead = ahead_of<Tiles>(scale_place, planes.tile_scales, kAhead / 8);
  const std::int8_t* codes = x.codes + at * kGroupColumns;
  const __m512i offset = _mm512_set1_epi32(x.offsets[at]);
#pragma GCC unroll 4
  for (std::uint32_t i = 0; i < Tiles; ++i) {
    __m512i quads[kQuads];
    load_quads<Whole>(planes, i, g, ahead, quads);
    const std::uint8_t* scales = planes.scales_at(i, scale_place);
    prefetch(scales, scales_ahead);
    __m512i even = Format::start(scales, offset), odd = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (std::uint32_t q = 0; q < kQuads; q += 2) {
      even = dot<Format, Dot>(even, quads[q], quad_of(codes, q));
      odd = dot<Format, Dot>(odd, quads[q + 1], quad_of(codes, q + 1));
    }
    block[i] =
        fold_group<Format>(_mm512_add_epi32(even, odd), Format::scales(scales), x.scales[at], block[i]);
  }
}

/// `Tiles` tiles times one row: bound by memory, so several streams of weights at once.
template <class Format, class Dot, std::uint32_t Tiles>
void row_times_tiles(const WeightView& w, std::uint32_t tile, const Int8Rows& x, float* y) {
  const TilePlanes<Format> planes(w, tile);
  __m512 sum[Tiles], block[Tiles];
  for (std::uint32_t i = 0; i < Tiles; ++i) sum[i] = block[i] = _mm512_setzero_ps();
  for (std::uint32_t begin = 0; begin < x.groups; begin += kGroupsInBlock) {
    const std::uint32_t end = x.groups - begin < kGroupsInBlock ? x.groups : begin + kGroupsInBlock;
    for (auto& b : block) b = _mm512_setzero_ps();
    std::uint32_t g = begin;
    for (; g < end && planes.whole(g); ++g) row_times_group<true, Format, Dot>(planes, x, g, block);
    if (g < end) row_times_group<false, Format, Dot>(planes, x, g, block);
    for (std::uint32_t i = 0; i < Tiles; ++i)
      sum[i] = begin == 0 ? block[i] : _mm512_add_ps(sum[i], block[i]);
  }
  for (std::uint32_t i = 0; i < Tiles; ++i) store_rows(y, (tile + i) * kTileRows, w.rows, sum[i]);
}

/// Rows of one pass of rows_times_tiles: their sums stay in the first-level cache.
constexpr std::uint32_t kPassRows = 32;

/// block <- the same and group g, of `Tiles` tiles times `rows` rows: its weights stay in registers.
template <bool Whole, class Format, class Dot, std::uint32_t Tiles>
inline __attribute__((always_inline)) void rows_times_group(const TilePlanes<Format>& planes,
                                                            const Int8Rows& x, std::uint32_t g,
                                                            std::uint32_t rows, __m512 (*block)[Tiles]) {
  const std::size_t first = x.at(0, g), scale_place = planes.scale_place(g);
  const std::size_t ahead = planes.template ahead<Tiles>(g);
  __m512i quads[Tiles][kQuads];
  __m512 d[Tiles];
#pragma GCC unroll 2
  for (std::uint32_t i = 0; i < Tiles; ++i) {
    load_quads<Whole>(planes, i, g, ahead, quads[i]);
    d[i] = Format::scales(planes.scales_at(i, scale_place));
  }
  for (std::uint32_t t = 0; t < rows; ++t) {
    const std::int8_t* codes = x.codes + (first + t) * kGroupColumns;
    const __m512i offset = _mm512_set1_epi32(x.offsets[first + t]);
    // Two chains a tile: one of eight products would outlast what the core can look ahead.
    __m512i even[Tiles], odd[Tiles];
    for (std::uint32_t i = 0; i < Tiles; ++i) {
      even[i] = Format::start(planes.scales_at(i, scale_place), offset);
      odd[i] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (std::uint32_t q = 0; q < kQuads; q += 2) {
      const __m512i first_quad = quad_of(codes, q), second_quad = quad_of(codes, q + 1);
      for (std::uint32_t i = 0; i < Tiles; ++i) {
        even[i] = dot<Format, Dot>(even[i], quads[i][q], first_quad);
        odd[i] = dot<Format, Dot>(odd[i], quads[i][q + 1], second_quad);
      }
    }
    for (std::uint32_t i = 0; i < Tiles; ++i)
      block[t][i] =
          fold_group<Format>(_mm512_add_epi32(even[i], odd[i]), d[i], x.scales[first + t], block[t][i]);
  }
}

/// `Tiles` tiles times up to kPassRows rows.
template <class Format, class Dot, std::uint32_t Tiles>
void rows_times_tiles(const WeightView& w, std::uint32_t tile, const Int8Rows& x, std::uint32_t rows,
                      float* y, std::size_t y_stride) {
  const TilePlanes<Format> planes(w, tile);
  __m512 sum[kPassRows][Tiles], block[kPassRows][Tiles];
  for (std::uint32_t t = 0; t < rows; ++t)
    for (auto& s : sum[t]) s = _mm512_setzero_ps();
  for (std::uint32_t begin = 0; begin < x.groups; begin += kGroupsInBlock) {
    const std::uint32_t end = x.groups - begin < kGroupsInBlock ? x.groups : begin + kGroupsInBlock;
    for (std::uint32_t t = 0; t < rows; ++t)
      for (auto& b : block[t]) b = _mm512_setzero_ps();
    std::uint32_t g = begin;
    for (; g < end && planes.whole(g); ++g)
      rows_times_group<true, Format, Dot, Tiles>(planes, x, g, rows, block);
    if (g < end) rows_times_group<false, Format, Dot, Tiles>(planes, x, g, rows, block);
    for (std::uint32_t t = 0; t < rows; ++t)
      for (std::uint32_t i = 0; i < Tiles; ++i)
        sum[t][i] = begin == 0 ? block[t][i] : _mm512_add_ps(sum[t][i], block[t][i]);
  }
  for (std::uint32_t t = 0; t < rows; ++t)
    for (std::uint32_t i = 0; i < Tiles; ++i)
      store_rows(y + t * y_stride, (tile + i) * kTileRows, w.rows, sum[t][i]);
}

template <class Format, class Dot>
void multiply_tiles(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y,
                    std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  if (tokens == 1) {
    std::uint32_t tile = tile_begin;
    for (; tile + 4 <= tile_end; tile += 4) row_times_tiles<Format, Dot, 4>(w, tile, x, y);
    for (; tile + 2 <= tile_end; tile += 2) row_times_tiles<Format, Dot, 2>(w, tile, x, y);
    if (tile < tile_end) row_times_tiles<Format, Dot, 1>(w, tile, x, y);
    return;
  }
  for (std::uint32_t t = 0; t < tokens; t += kPassRows) {
    const std::uint32_t rows = tokens - t < kPassRows ? tokens - t : kPassRows;
    float* out = y + t * y_stride;
    std::uint32_t tile = tile_begin;
    for (; tile + 2 <= tile_end; tile += 2)
      rows_times_tiles<Format, Dot, 2>(w, tile, x.from(t), rows, out, y_stride);
    if (tile < tile_end) rows_times_tiles<Format, Dot, 1>(w, tile, x.from(t), rows, out, y_stride);
  }
}

template <class Dot>
void multiply(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
              std::uint32_t tile_begin, std::uint32_t tile_end) {
  const auto as = [&]<class Format>() {
    multiply_tiles<Format, Dot>(w, x, tokens, y, y_stride, tile_begin, tile_end);
  };
  switch (w.format) {
    case WeightFormat::kInt4:
      return as.template operator()<Int4Quads>();
    case WeightFormat::kInt4Zero:
      return as.template operator()<Int4ZeroQuads>();
    case WeightFormat::kMxfp4:
      return as.template operator()<Mxfp4Quads>();
    case WeightFormat::kInt8:
      return as.template operator()<Int8Quads>();
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
    case WeightFormat::kFp8:
      break;
  }
}

}  // namespace
}  // namespace wisp::kernels::avx512
