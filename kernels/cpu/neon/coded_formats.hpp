#pragma once
#include "cpu/neon/vector.hpp"
#include "wisp/kernels/number.hpp"

/// What the coded formats differ in, for the products of linear_coded.cpp and int8_tiles.hpp: how the codes
/// of a column become floats, and where their scales come from. A format has
///   kFormat
///   Codes(p): one dword of columns for 4 rows
///   float32x4_t column<C>(codes, zero): column C of it, c or c - z
///   Sixteen scales(p), Sixteen zeros(p): of the rows of a tile, for one group
namespace wisp::kernels::neon {
namespace {

/// An index that moves byte `B` of each dword to byte `To`; the others lie beyond any table.
template <std::uint8_t B, std::uint8_t To>
inline uint8x16_t byte_index() {
  constexpr auto kAt = [](std::uint8_t byte) -> std::uint8_t {
    return byte % 4 == To ? static_cast<std::uint8_t>(byte / 4 * 4 + B) : 255;
  };
  constexpr std::uint8_t kIndex[16] = {kAt(0), kAt(1), kAt(2),  kAt(3),  kAt(4),  kAt(5),  kAt(6),  kAt(7),
                                       kAt(8), kAt(9), kAt(10), kAt(11), kAt(12), kAt(13), kAt(14), kAt(15)};
  return vld1q_u8(kIndex);
}

inline uint32x4_t load_dwords(const std::uint8_t* p) {
  return vreinterpretq_u32_u8(vld1q_u8(p));
}

/// 16 bf16 numbers.
inline Sixteen load_bf16(const std::uint8_t* p) {
  Sixteen out;
  for (std::uint32_t v = 0; v < kVectors; ++v) out.v[v] = widen_bf16(vreinterpret_u16_u8(vld1_u8(p + v * 8)));
  return out;
}

/// Eight nibbles in a dword: columns 0, 2, 4, 6 in the bytes of `even`, the others in those of `odd`.
struct Nibbles {
  uint8x16_t even, odd;
  explicit Nibbles(const std::uint8_t* p) {
    const uint8x16_t both = vld1q_u8(p);
    even = vandq_u8(both, vdupq_n_u8(15));
    odd = vshrq_n_u8(both, 4);
  }
};

/// A code in the mantissa of 2^23 makes 2^23 + c; taking 2^23 + z away gives c - z, exactly.
constexpr float kMantissa = 0x1p23f;
template <std::uint32_t C>
inline float32x4_t less_zero(const Nibbles& codes, float32x4_t zero) {
  const uint8x16_t mantissa = vreinterpretq_u8_f32(vdupq_n_f32(kMantissa));
  // Bytes whose index lies beyond the table keep those of the mantissa.
  const uint8x16_t bits = vqtbx1q_u8(mantissa, C % 2 == 0 ? codes.even : codes.odd, byte_index<C / 2, 0>());
  return vsubq_f32(vreinterpretq_f32_u8(bits), zero);
}

struct Int4 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  using Codes = Nibbles;
  template <std::uint32_t C>
  static float32x4_t column(const Codes& codes, float32x4_t /*zero*/) {
    return less_zero<C>(codes, vdupq_n_f32(kMantissa + 8.0f));
  }
  static Sixteen scales(const std::uint8_t* p) { return load_bf16(p); }
  static Sixteen zeros(const std::uint8_t* /*p*/) { return {}; }
};

struct Int4Zero {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4Zero;
  using Codes = Nibbles;
  template <std::uint32_t C>
  static float32x4_t column(const Codes& codes, float32x4_t zero) {
    return less_zero<C>(codes, zero);
  }
  static Sixteen scales(const std::uint8_t* p) {
    Sixteen out;
    for (std::uint32_t v = 0; v < kVectors; ++v)
      out.v[v] = vreinterpretq_f32_u32(vbicq_u32(load_dwords(p + v * 16), vdupq_n_u32(kZeroPointBits)));
    return out;
  }
  /// 2^23 + z
  static Sixteen zeros(const std::uint8_t* p) {
    const uint32x4_t mantissa = vreinterpretq_u32_f32(vdupq_n_f32(kMantissa));
    Sixteen out;
    for (std::uint32_t v = 0; v < kVectors; ++v) {
      const uint32x4_t zero = vandq_u32(load_dwords(p + v * 16), vdupq_n_u32(kZeroPointBits));
      out.v[v] = vreinterpretq_f32_u32(vorrq_u32(zero, mantissa));
    }
    return out;
  }
};

struct Mxfp4 {
  static constexpr WeightFormat kFormat = WeightFormat::kMxfp4;
  /// The upper two bytes of each number as f32; those below are zero. A minus zero stays one.
  struct Codes {
    uint8x16x2_t even, odd;  ///< the lower of the two, the higher
    explicit Codes(const std::uint8_t* p) {
      constexpr std::uint8_t kLower[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                           0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
      constexpr std::uint8_t kHigher[16] = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                            0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
      const uint8x16_t lower = vld1q_u8(kLower), higher = vld1q_u8(kHigher);
      const Nibbles n(p);
      even = {{vqtbl1q_u8(lower, n.even), vqtbl1q_u8(higher, n.even)}};
      odd = {{vqtbl1q_u8(lower, n.odd), vqtbl1q_u8(higher, n.odd)}};
    }
  };
  template <std::uint32_t C>
  static float32x4_t column(const Codes& codes, float32x4_t /*zero*/) {
    // Byte C / 2 of both tables, the second of which begins at 16.
    const uint8x16_t index = vandq_u8(byte_index<C / 2, 2>(), byte_index<C / 2 + 16, 3>());
    return vreinterpretq_f32_u8(vqtbl2q_u8(C % 2 == 0 ? codes.even : codes.odd, index));
  }
  /// 2^(s - 127); 2^-127 is subnormal.
  static Sixteen scales(const std::uint8_t* p) {
    Sixteen out;
    for (std::uint32_t v = 0; v < kVectors; ++v) {
      std::uint32_t four;
      std::memcpy(&four, p + v * 4, 4);
      const uint32x4_t s = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
      const uint32x4_t least = vandq_u32(vceqzq_u32(s), vdupq_n_u32(0x00400000));
      out.v[v] = vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(s, 23), least));
    }
    return out;
  }
  static Sixteen zeros(const std::uint8_t* /*p*/) { return {}; }
};

/// Four bytes in a dword.
struct Bytes {
  uint8x16_t all;
  explicit Bytes(const std::uint8_t* p) : all(vld1q_u8(p)) {}
  /// In the highest byte of each lane, zero below.
  template <std::uint32_t C>
  int32x4_t high() const {
    return vreinterpretq_s32_u8(vqtbl1q_u8(all, byte_index<C, 3>()));
  }
};

struct Int8 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  using Codes = Bytes;
  template <std::uint32_t C>
  static float32x4_t column(const Codes& codes, float32x4_t /*zero*/) {
    return vcvtq_n_f32_s32(codes.high<C>(), 24);  // c 2^24 / 2^24
  }
  static Sixteen scales(const std::uint8_t* p) { return load_bf16(p); }
  static Sixteen zeros(const std::uint8_t* /*p*/) { return {}; }
};

struct Fp8 {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  using Codes = Bytes;
  /// The sign stays above, exponent and fraction come to where f32 has its own; the factor moves the bias.
  template <std::uint32_t C>
  static float32x4_t column(const Codes& codes, float32x4_t /*zero*/) {
    const uint32x4_t spread = vreinterpretq_u32_s32(vshrq_n_s32(codes.high<C>(), 4));
    const uint32x4_t bits = vandq_u32(spread, vdupq_n_u32(0x87f00000u));
    return vmulq_n_f32(vreinterpretq_f32_u32(bits), 0x1p120f);
  }
  static Sixteen scales(const std::uint8_t* p) {
    float one;
    std::memcpy(&one, p, sizeof one);
    return splat(one);
  }
  static Sixteen zeros(const std::uint8_t* /*p*/) { return {}; }
};

}  // namespace
}  // namespace wisp::kernels::neon
