#include "cpu/avx2/avx2.hpp"
#include "cpu/avx2/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::avx2 {
namespace {

constexpr std::uint32_t kColumns = 8;  // of a dword
constexpr std::size_t kDwordBytes = kTileRows * 4;

/// Moves byte `B` of each dword to its low byte, zero above: codes of 8 rows.
template <int B>
inline __m256i byte_of(__m256i v) {
  const int drop = -1;
  const __m256i control = _mm256_set_epi8(
      drop, drop, drop, 12 + B, drop, drop, drop, 8 + B, drop, drop, drop, 4 + B, drop, drop, drop, B,  //
      drop, drop, drop, 12 + B, drop, drop, drop, 8 + B, drop, drop, drop, 4 + B, drop, drop, drop, B);
  return _mm256_shuffle_epi8(v, control);
}

/// Scales of the 16 rows of a tile.
struct Scales {
  __m256 low;
  __m256 high;
};

/// What the formats differ in.
struct Int4 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  /// Codes in [0, 15] to c - 8, exactly: or-ing them into the mantissa of 2^23 gives 2^23 + c.
  static __m256 widen(__m256i code) {
    const __m256 base = _mm256_set1_ps(0x1p23f);
    return _mm256_sub_ps(_mm256_or_ps(_mm256_castsi256_ps(code), base), _mm256_set1_ps(0x1p23f + 8.0f));
  }
  static Scales scales(const std::uint8_t* p) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(both));
    const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  }
};

struct Mxfp4 {
  static constexpr WeightFormat kFormat = WeightFormat::kMxfp4;
  /// The magnitude from a table by the low three bits, the sign from the fourth.
  static __m256 widen(__m256i code) {
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(code, 3), 31);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
  }
  /// 2^(s - 127); 2^-127 is subnormal.
  static __m256 power(__m256i s) {
    const __m256i least =
        _mm256_and_si256(_mm256_cmpeq_epi32(s, _mm256_setzero_si256()), _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(s, 23), least));
  }
  static Scales scales(const std::uint8_t* p) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {power(_mm256_cvtepu8_epi32(all)), power(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)))};
  }
};

template <std::uint32_t Tokens>
struct Chains {
  __m256 low[Tokens];   ///< rows 0-7
  __m256 high[Tokens];  ///< rows 8-15
};

template <std::uint32_t Tokens>
inline void clear(Chains<Tokens>& chains) {
  for (std::uint32_t i = 0; i < Tokens; ++i) chains.low[i] = chains.high[i] = _mm256_setzero_ps();
}

/// The codes of one dword of columns: columns 0, 2, 4, 6 in the bytes of `even`, the others in those of
/// `odd`.
struct Nibbles {
  __m256i even;
  __m256i odd;
};

inline Nibbles split(const std::uint8_t* codes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  return {_mm256_and_si256(both, nibble), _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble)};
}

/// Columns C, C + 1, .. of one dword, those below `live`, ascending. Both halves of the tile take a column
/// together: half by half, GCC keeps every broadcast for the second half and spills.
template <class Codes, std::uint32_t C, std::uint32_t Tokens>
inline __attribute__((always_inline)) void advance(const Nibbles& low, const Nibbles& high, const float* x,
                                                   std::size_t x_stride, std::uint32_t live,
                                                   Chains<Tokens>& t) {
  if constexpr (C < kColumns) {
    if (C >= live) return;
    const __m256 wide_low = Codes::widen(byte_of<C / 2>(C % 2 == 0 ? low.even : low.odd));
    const __m256 wide_high = Codes::widen(byte_of<C / 2>(C % 2 == 0 ? high.even : high.odd));
    for (std::uint32_t i = 0; i < Tokens; ++i) {
      const __m256 xk = _mm256_broadcast_ss(x + i * x_stride + C);
      t.low[i] = _mm256_fmadd_ps(wide_low, xk, t.low[i]);
      t.high[i] = _mm256_fmadd_ps(wide_high, xk, t.high[i]);
    }
    advance<Codes, C + 1, Tokens>(low, high, x, x_stride, live, t);
  }
}

/// One dword of columns for the 16 rows of a tile.
template <class Codes, std::uint32_t Tokens>
inline __attribute__((always_inline)) void dword(const std::uint8_t* codes, std::size_t tile_bytes,
                                                 const float* x, std::size_t x_stride, std::uint32_t live,
                                                 Chains<Tokens>& t) {
  prefetch(codes, tile_bytes);
  advance<Codes, 0, Tokens>(split(codes), split(codes + kDwordBytes / 2), x, x_stride, live, t);
}

/// a <- fma(t, d_w, a) with the 16 scales at `scales`.
template <class Codes, std::uint32_t Tokens>
inline void fold(const Chains<Tokens>& t, const std::uint8_t* scales, Chains<Tokens>& a) {
  const Scales d = Codes::scales(scales);
  for (std::uint32_t i = 0; i < Tokens; ++i) {
    a.low[i] = _mm256_fmadd_ps(t.low[i], d.low, a.low[i]);
    a.high[i] = _mm256_fmadd_ps(t.high[i], d.high, a.high[i]);
  }
}

/// One tile for `Tokens` tokens. The inner chains of `Groups` groups of 32 columns run side by side, as they
/// do not depend on each other; they are folded in ascending order.
template <class Codes, std::uint32_t Tokens, std::uint32_t Groups>
void tile_of_tokens(const WeightView& w, std::uint32_t tile, const float* x, std::size_t x_stride, float* y,
                    std::size_t y_stride) {
  constexpr std::uint32_t kSpan = Groups * kGroupColumns;
  constexpr std::size_t kGroupBytes = kGroupColumns / kColumns * kDwordBytes;
  const std::size_t tile_bytes = dwords_of(w.format, w.cols) * kDwordBytes;
  const std::uint8_t* codes = w.codes + tile * tile_bytes;
  constexpr std::size_t kScaleRow = kTileRows * scale_bytes(Codes::kFormat);
  const std::uint8_t* scales = w.scales + std::size_t{tile} * ((w.cols + w.group - 1) / w.group) * kScaleRow;
  const auto scales_of = [&](std::uint32_t k) { return scales + std::size_t{k / w.group} * kScaleRow; };
  Chains<Tokens> sum;
  clear(sum);
  for (std::uint32_t k = 0; k < w.cols;) {
    const std::uint32_t begin = k;
    const std::uint32_t end = w.cols - begin < kBlockColumns ? w.cols : begin + kBlockColumns;
    Chains<Tokens> a;
    clear(a);
    for (; k + kSpan <= end; k += kSpan) {
      Chains<Tokens> t[Groups];
      for (auto& of_group : t) clear(of_group);
      for (std::uint32_t c = 0; c < kGroupColumns; c += kColumns, codes += kDwordBytes) {
        for (std::uint32_t g = 0; g < Groups; ++g) {
          dword<Codes>(codes + g * kGroupBytes, tile_bytes, x + k + g * kGroupColumns + c, x_stride, kColumns,
                       t[g]);
        }
      }
      codes += (Groups - 1) * kGroupBytes;
      for (std::uint32_t g = 0; g < Groups; ++g) fold<Codes>(t[g], scales_of(k + g * kGroupColumns), a);
    }
    while (k < end) {
      const std::uint32_t group_begin = k;
      const std::uint32_t group_end = end - k < kGroupColumns ? end : k + kGroupColumns;
      Chains<Tokens> t;
      clear(t);
      for (; k < group_end; codes += kDwordBytes) {
        const std::uint32_t live = group_end - k < kColumns ? group_end - k : kColumns;
        dword<Codes>(codes, tile_bytes, x + k, x_stride, live, t);
        k += live;
      }
      fold<Codes>(t, scales_of(group_begin), a);
    }
    for (std::uint32_t i = 0; i < Tokens; ++i) {
      sum.low[i] = begin == 0 ? a.low[i] : _mm256_add_ps(sum.low[i], a.low[i]);
      sum.high[i] = begin == 0 ? a.high[i] : _mm256_add_ps(sum.high[i], a.high[i]);
    }
  }
  for (std::uint32_t i = 0; i < Tokens; ++i) {
    store_rows(y + i * y_stride, tile * kTileRows, w.rows, sum.low[i], sum.high[i]);
  }
}

template <class Codes>
void tiles_of_codes(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                    std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  for (std::uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    for (std::uint32_t t = 0; t < tokens;) {
      const std::uint32_t pass = next_tokens(tokens - t);
      const float* xt = x + t * x_stride;
      float* yt = y + t * y_stride;
      switch (pass) {
        case 1:
          tile_of_tokens<Codes, 1, 4>(w, tile, xt, x_stride, yt, y_stride);
          break;
        case 2:
          tile_of_tokens<Codes, 2, 2>(w, tile, xt, x_stride, yt, y_stride);
          break;
        case 3:
          tile_of_tokens<Codes, 3, 1>(w, tile, xt, x_stride, yt, y_stride);
          break;
        default:
          tile_of_tokens<Codes, 4, 1>(w, tile, xt, x_stride, yt, y_stride);
          break;
      }
      t += pass;
    }
  }
}

}  // namespace

void linear_coded(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                  std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  if (w.format == WeightFormat::kInt4)
    tiles_of_codes<Int4>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
  else
    tiles_of_codes<Mxfp4>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
}

}  // namespace wisp::kernels::avx2
