#include <cmath>
#include <cstring>

#include "cpu/avx2/avx2.hpp"
#include "cpu/avx2/coded_formats.hpp"
#include "wisp/kernels/int8_rows.hpp"

/// Products of the `fast` profile. The sums of a group are whole numbers, so their order is free.
namespace wisp::kernels::avx2 {
namespace {

constexpr std::size_t kDwordBytes = kTileRows * 4;
constexpr std::uint32_t kGroupsInBlock = kBlockColumns / kGroupColumns;

inline __m256i four_codes(const std::int8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}

/// Sums of neighbours: 16 numbers of 16 bits to 8 of 32.
inline __m256i widen_sums(__m256i v) {
  return _mm256_madd_epi16(v, _mm256_set1_epi16(1));
}

/// Products of signed bytes, neighbours added, in 16 bits: at most 2 * 128 * 127, so nothing saturates.
inline __m256i multiply_signed(__m256i w, __m256i x) {
  return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}

/// How the codes of a dword are multiplied. Sums of nibbles fit 16 bits over a whole group: 8 products of two
/// neighbours, at most 2 * 15 * 127 each.
struct UnsignedNibbles {
  static constexpr bool kNarrow = true;
  Nibbles codes;
  explicit UnsignedNibbles(const std::uint8_t* p) : codes(Nibbles::load(p)) {}
  __m256i products(const std::int8_t* x) const {
    return _mm256_add_epi16(_mm256_maddubs_epi16(codes.even, four_codes(x)),
                            _mm256_maddubs_epi16(codes.odd, four_codes(x + 4)));
  }
};

/// Of codes that stand for themselves.
struct NoZeroPoints {
  static __m256i correction(__m256i /*zeros*/, std::int32_t /*offset*/) { return _mm256_setzero_si256(); }
  static __m256i zero_points(const std::uint8_t* /*scales*/) { return _mm256_setzero_si256(); }
};

struct Int4Products : Int4 {
  using Step = UnsignedNibbles;
  static __m256i correction(__m256i /*zeros*/, std::int32_t offset) { return _mm256_set1_epi32(-offset); }
  static __m256i zero_points(const std::uint8_t* /*scales*/) { return _mm256_setzero_si256(); }
  static constexpr float kUnit = 1.0f;
};

struct Int4ZeroProducts : Int4Zero {
  using Step = UnsignedNibbles;
  static __m256i correction(__m256i zeros, std::int32_t offset) {
    return _mm256_mullo_epi32(zeros, _mm256_set1_epi32(offset));
  }
  static __m256i zero_points(const std::uint8_t* scales) {
    return _mm256_and_si256(load_dwords(scales), _mm256_set1_epi32(static_cast<int>(kZeroPointBits)));
  }
  static constexpr float kUnit = 1.0f;
};

struct Mxfp4Products : Mxfp4, NoZeroPoints {
  /// Twice the E2M1 numbers are whole.
  struct Step {
    static constexpr bool kNarrow = true;
    __m256i even, odd;
    explicit Step(const std::uint8_t* p) {
      const __m256i table = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,  //
                                             0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
      const Nibbles n = Nibbles::load(p);
      even = _mm256_shuffle_epi8(table, n.even);
      odd = _mm256_shuffle_epi8(table, n.odd);
    }
    __m256i products(const std::int8_t* x) const {
      return _mm256_add_epi16(multiply_signed(even, four_codes(x)), multiply_signed(odd, four_codes(x + 4)));
    }
  };
  static constexpr float kUnit = 0.5f;
};

struct Int8Products : Int8, NoZeroPoints {
  struct Step {
    static constexpr bool kNarrow = false;
    __m256i codes;
    explicit Step(const std::uint8_t* p) : codes(load_dwords(p)) {}
    __m256i products(const std::int8_t* x) const { return widen_sums(multiply_signed(codes, four_codes(x))); }
  };
  static constexpr float kUnit = 1.0f;
};

template <class Format>
inline __m256i add_products(__m256i sum, __m256i products) {
  return Format::Step::kNarrow ? _mm256_add_epi16(sum, products) : _mm256_add_epi32(sum, products);
}

/// t_g of 8 rows.
template <class Format>
inline __m256 group_sum(__m256i sum, __m256i zeros, std::int32_t offset) {
  const __m256i wide = Format::Step::kNarrow ? widen_sums(sum) : sum;
  const __m256 t = _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, Format::correction(zeros, offset)));
  return Format::kUnit == 1.0f ? t : _mm256_mul_ps(t, _mm256_set1_ps(Format::kUnit));
}

template <class Format, std::uint32_t Tokens>
void tile_of_tokens(const WeightView& w, std::uint32_t tile, const Int8Rows& x, float* y,
                    std::size_t y_stride) {
  constexpr std::uint32_t kDwords = kGroupColumns / columns_per_dword(Format::kFormat);
  constexpr std::size_t kCodesOfDword = columns_per_dword(Format::kFormat);
  constexpr std::size_t kScaleRow =
      traits_of(Format::kFormat).scale_rows * traits_of(Format::kFormat).scale_bytes;
  const std::uint32_t dwords = dwords_of(w.format, w.cols);
  const std::size_t tile_bytes = dwords * kDwordBytes;
  const std::uint8_t* codes = w.codes + tile * tile_bytes;
  const std::uint8_t* scales = w.scales + tile * tile_scale_bytes(Format::kFormat, w.cols, w.group);
  const std::uint32_t per_scale = w.group / kGroupColumns;
  __m256 sum[Tokens][2];
  for (auto& of_token : sum) of_token[0] = of_token[1] = _mm256_setzero_ps();
  __m256 block[Tokens][2] = {};
  for (std::uint32_t g = 0; g < x.groups; ++g) {
    if (g % kGroupsInBlock == 0)
      for (auto& of_token : block) of_token[0] = of_token[1] = _mm256_setzero_ps();
    __m256i products[Tokens][2];
    for (auto& p : products) p[0] = p[1] = _mm256_setzero_si256();
    const std::uint32_t live = dwords - g * kDwords < kDwords ? dwords - g * kDwords : kDwords;
    const std::int8_t* x_codes = x.codes + x.at(0, g) * kGroupColumns;
    const auto step = [&](std::uint32_t d) {
      prefetch(codes, tile_bytes);
      const typename Format::Step low(codes), high(codes + kDwordBytes / 2);
      codes += kDwordBytes;
      for (std::uint32_t t = 0; t < Tokens; ++t) {
        const std::int8_t* xt = x_codes + std::size_t{t} * kGroupColumns + d * kCodesOfDword;
        products[t][0] = add_products<Format>(products[t][0], low.products(xt));
        products[t][1] = add_products<Format>(products[t][1], high.products(xt));
      }
    };
    if (live == kDwords) {
      for (std::uint32_t d = 0; d < kDwords; ++d) step(d);
    } else {
      for (std::uint32_t d = 0; d < live; ++d) step(d);
    }
    const std::uint8_t* of_group = scales + g / per_scale * kScaleRow;
    const Pair factors = Format::scales(of_group);
    const __m256i zeros_low = Format::zero_points(of_group), zeros_high = Format::zero_points(of_group + 32);
    for (std::uint32_t t = 0; t < Tokens; ++t) {
      const std::size_t at = x.at(t, g);
      const __m256 d = _mm256_broadcast_ss(x.scales + at);
      block[t][0] = _mm256_fmadd_ps(group_sum<Format>(products[t][0], zeros_low, x.offsets[at]),
                                    _mm256_mul_ps(factors.low, d), block[t][0]);
      block[t][1] = _mm256_fmadd_ps(group_sum<Format>(products[t][1], zeros_high, x.offsets[at]),
                                    _mm256_mul_ps(factors.high, d), block[t][1]);
    }
    if ((g + 1) % kGroupsInBlock != 0 && g + 1 != x.groups) continue;
    for (std::uint32_t t = 0; t < Tokens; ++t)
      for (std::uint32_t h = 0; h < 2; ++h)
        sum[t][h] = g < kGroupsInBlock ? block[t][h] : _mm256_add_ps(sum[t][h], block[t][h]);
  }
  for (std::uint32_t t = 0; t < Tokens; ++t)
    store_rows(y + t * y_stride, tile * kTileRows, w.rows, sum[t][0], sum[t][1]);
}

template <class Format>
void tiles_of(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
              std::uint32_t tile_begin, std::uint32_t tile_end) {
  for (std::uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    for_passes(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
      tile_of_tokens<Format, N>(w, tile, x.from(t), y + t * y_stride, y_stride);
    });
  }
}

/// Codes of 8 columns.
inline __m256i round_codes(__m256 x, __m256 inverse) {
  const __m256 limit = _mm256_set1_ps(127.0f);
  const __m256 scaled = _mm256_mul_ps(x, inverse);
  const __m256 held = _mm256_max_ps(_mm256_min_ps(scaled, limit), _mm256_set1_ps(-127.0f));
  return _mm256_cvtps_epi32(held);
}

}  // namespace

void quantise(WeightFormat f, const float* x, std::size_t x_stride, std::uint32_t rows, std::uint32_t cols,
              const Int8Rows& out) {
  const bool apart = columns_per_dword(f) == 8;
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256i infinite = _mm256_set1_epi32(0x7f800000);
  // Of 8 bytes: the even columns, then the odd ones.
  const __m128i parting = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  for (std::uint32_t r = 0; r < rows; ++r) {
    const float* row = x + r * x_stride;
    for (std::uint32_t g = 0; g < out.groups; ++g) {
      const std::size_t at = out.at(r, g);
      const std::size_t first = std::size_t{g} * kGroupColumns;
      __m256 part[4];
      __m256i largest = _mm256_setzero_si256();  // magnitudes order as their bits do, NaN above all
      for (std::size_t i = 0; i < 4; ++i) {
        part[i] = load_some(row, first + i * kLanes, cols);
        largest = _mm256_max_epi32(largest, _mm256_castps_si256(_mm256_and_ps(part[i], magnitude)));
      }
      alignas(32) std::int32_t bits[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bits), largest);
      std::int32_t most = 0;
      for (const std::int32_t b : bits) most = b > most ? b : most;
      const bool finite = most < _mm256_extract_epi32(infinite, 0);
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
      const __m256 factor = _mm256_set1_ps(inverse);
      __m256i sum = _mm256_setzero_si256(), wide[4];
      for (std::size_t i = 0; i < 4; ++i) {
        wide[i] = round_codes(part[i], factor);
        sum = _mm256_add_epi32(sum, wide[i]);
      }
      for (std::size_t i = 0; i < 2; ++i) {
        // packs work within halves: bring the quarters back into their order.
        const __m256i shorts =
            _mm256_permute4x64_epi64(_mm256_packs_epi32(wide[2 * i], wide[2 * i + 1]), 0xd8);
        const __m128i low = _mm256_castsi256_si128(shorts), high = _mm256_extracti128_si256(shorts, 1);
        const __m128i bytes = _mm_packs_epi16(low, high);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i * 16),
                         apart ? _mm_shuffle_epi8(bytes, parting) : bytes);
      }
      __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
      four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
      out.offsets[at] = -code_lift(f) * _mm_cvtsi128_si32(four);
    }
  }
}

void linear_int8(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
                 std::uint32_t tile_begin, std::uint32_t tile_end) {
  const auto as = [&]<class Format>() { tiles_of<Format>(w, x, tokens, y, y_stride, tile_begin, tile_end); };
  switch (w.format) {
    case WeightFormat::kInt4:
      return as.operator()<Int4Products>();
    case WeightFormat::kInt4Zero:
      return as.operator()<Int4ZeroProducts>();
    case WeightFormat::kMxfp4:
      return as.operator()<Mxfp4Products>();
    case WeightFormat::kInt8:
      return as.operator()<Int8Products>();
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
    case WeightFormat::kFp8:
      break;
  }
}

}  // namespace wisp::kernels::avx2
