#pragma once
#include "cpu/avx2/vector.hpp"
#include "wisp/kernels/number.hpp"

/// What the coded formats differ in, for the products of linear_coded.cpp and int8.cpp: how the codes of a
/// column become floats, and where their scales come from. A format has
///   kFormat
///   Codes load(p): one dword of columns for 8 rows
///   __m256 column<C>(codes, zero): column C of it, c or c - z
///   Pair scales(p), Pair zeros(p): of the 16 rows of a tile, for one group
namespace wisp::kernels::avx2 {
namespace {

/// Numbers of the 16 rows of a tile.
struct Pair {
  __m256 low;
  __m256 high;
};

/// Of a format whose codes stand for themselves; nobody reads them.
inline Pair no_zeros() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}

/// Moves byte `B` of each dword to byte `To`, zero elsewhere.
template <int B, int To>
inline __m256i byte_of(__m256i v) {
  constexpr auto kAt = [](int lane_byte) {
    return lane_byte % 4 == To ? static_cast<char>(lane_byte / 4 * 4 + B) : static_cast<char>(-1);
  };
  const __m256i control = _mm256_setr_epi8(
      kAt(0), kAt(1), kAt(2), kAt(3), kAt(4), kAt(5), kAt(6), kAt(7), kAt(8), kAt(9), kAt(10), kAt(11),
      kAt(12), kAt(13), kAt(14), kAt(15), kAt(0), kAt(1), kAt(2), kAt(3), kAt(4), kAt(5), kAt(6), kAt(7),
      kAt(8), kAt(9), kAt(10), kAt(11), kAt(12), kAt(13), kAt(14), kAt(15));
  return _mm256_shuffle_epi8(v, control);
}

inline __m256i load_dwords(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

/// 16 bf16 numbers.
inline Pair load_bf16(const std::uint8_t* p) {
  const __m256i both = load_dwords(p);
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(both));
  const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}

/// Eight nibbles in a dword: columns 0, 2, 4, 6 in the bytes of `even`, the others in those of `odd`.
struct Nibbles {
  __m256i even;
  __m256i odd;
  static Nibbles load(const std::uint8_t* p) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i both = load_dwords(p);
    return {_mm256_and_si256(both, nibble), _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble)};
  }
  template <std::uint32_t C>
  __m256i code() const {
    return byte_of<C / 2, 0>(C % 2 == 0 ? even : odd);
  }
};
/// Four bytes in a dword.
struct Bytes {
  __m256i all;
  static Bytes load(const std::uint8_t* p) { return {load_dwords(p)}; }
  /// In the highest byte of each lane, zero below.
  template <std::uint32_t C>
  __m256i high() const {
    return byte_of<C, 3>(all);
  }
};

/// Or-ing a code into the mantissa of 2^23 gives 2^23 + c; taking 2^23 + z away gives c - z, exactly.
constexpr float kMantissa = 0x1p23f;
inline __m256 less_zero(__m256i code, __m256 zero) {
  return _mm256_sub_ps(_mm256_or_ps(_mm256_castsi256_ps(code), _mm256_set1_ps(kMantissa)), zero);
}

struct Int4 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  using Codes = Nibbles;
  template <std::uint32_t C>
  static __m256 column(const Codes& codes, __m256 /*zero*/) {
    return less_zero(codes.code<C>(), _mm256_set1_ps(kMantissa + 8.0f));
  }
  static Pair scales(const std::uint8_t* p) { return load_bf16(p); }
  static Pair zeros(const std::uint8_t* /*p*/) { return no_zeros(); }
};

struct Int4Zero {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4Zero;
  using Codes = Nibbles;
  template <std::uint32_t C>
  static __m256 column(const Codes& codes, __m256 zero) {
    return less_zero(codes.code<C>(), zero);
  }
  static __m256 factor(const std::uint8_t* p) {
    const __m256i bits = _mm256_set1_epi32(static_cast<int>(kZeroPointBits));
    return _mm256_castsi256_ps(_mm256_andnot_si256(bits, load_dwords(p)));
  }
  /// 2^23 + z
  static __m256 zero(const std::uint8_t* p) {
    const __m256i bits = _mm256_set1_epi32(static_cast<int>(kZeroPointBits));
    return _mm256_or_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, load_dwords(p))),
                        _mm256_set1_ps(kMantissa));
  }
  static Pair scales(const std::uint8_t* p) { return {factor(p), factor(p + 32)}; }
  static Pair zeros(const std::uint8_t* p) { return {zero(p), zero(p + 32)}; }
};

struct Mxfp4 {
  static constexpr WeightFormat kFormat = WeightFormat::kMxfp4;
  using Codes = Nibbles;
  /// The magnitude from a table by the low three bits, the sign from the fourth.
  template <std::uint32_t C>
  static __m256 column(const Codes& codes, __m256 /*zero*/) {
    const __m256i code = codes.code<C>();
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
  static Pair scales(const std::uint8_t* p) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {power(_mm256_cvtepu8_epi32(all)), power(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)))};
  }
  static Pair zeros(const std::uint8_t* /*p*/) { return no_zeros(); }
};

struct Int8 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  using Codes = Bytes;
  template <std::uint32_t C>
  static __m256 column(const Codes& codes, __m256 /*zero*/) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(codes.high<C>(), 24));
  }
  static Pair scales(const std::uint8_t* p) { return load_bf16(p); }
  static Pair zeros(const std::uint8_t* /*p*/) { return no_zeros(); }
};

struct Fp8 {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  using Codes = Bytes;
  /// The sign stays above, exponent and fraction come to where f32 has its own; the factor moves the bias.
  template <std::uint32_t C>
  static __m256 column(const Codes& codes, __m256 /*zero*/) {
    const __m256i spread = _mm256_srai_epi32(codes.high<C>(), 4);
    const __m256i bits = _mm256_and_si256(spread, _mm256_set1_epi32(static_cast<int>(0x87f00000u)));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
  }
  static Pair scales(const std::uint8_t* p) {
    const __m256 one = _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
    return {one, one};
  }
  static Pair zeros(const std::uint8_t* /*p*/) { return no_zeros(); }
};

}  // namespace
}  // namespace wisp::kernels::avx2
