#include <cmath>

#include "cpu/neon/int8_tiles.hpp"
#include "cpu/neon/neon.hpp"

namespace wisp::kernels::neon {
namespace {

/// A product a lane in 16 bits: rows 0 and 1 in `low`, 2 and 3 in `high`.
struct WideningProducts {
  static constexpr std::uint32_t kTokens = 2;  // four would not leave the sums in registers
  template <bool Narrow>
  struct Sum;
};

/// 8 products of a nibble and a byte fit the 16 bits, so they are added there.
template <>
struct WideningProducts::Sum<true> {
  int16x8_t low = vdupq_n_s16(0), high = vdupq_n_s16(0);
  void add(int8x16_t w, int8x16_t x) {
    low = vmlal_s8(low, vget_low_s8(w), vget_low_s8(x));
    high = vmlal_high_s8(high, w, x);
  }
  int32x4_t whole() const { return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)); }
};

template <>
struct WideningProducts::Sum<false> {
  int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);
  void add(int8x16_t w, int8x16_t x) {
    low = vpadalq_s16(low, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    high = vpadalq_s16(high, vmull_high_s8(w, x));
  }
  int32x4_t whole() const { return vpaddq_s32(low, high); }
};

/// Codes of 4 columns.
inline int32x4_t round_codes(float32x4_t x, float inverse) {
  const float32x4_t scaled = vmulq_n_f32(x, inverse);
  return vcvtnq_s32_f32(vmaxq_f32(vminq_f32(scaled, vdupq_n_f32(127.0f)), vdupq_n_f32(-127.0f)));
}

}  // namespace

void quantise(WeightFormat f, const float* x, std::size_t x_stride, std::uint32_t rows, std::uint32_t cols,
              const Int8Rows& out) {
  constexpr std::uint32_t kParts = kGroupColumns / kLanes;
  // Of 8 bytes: the even columns, then the odd ones.
  constexpr std::uint8_t kParting[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  const bool apart = columns_per_dword(f) == 8;
  const uint8x16_t parting = vld1q_u8(kParting);
  for (std::uint32_t r = 0; r < rows; ++r) {
    const float* row = x + r * x_stride;
    for (std::uint32_t g = 0; g < out.groups; ++g) {
      const std::size_t at = out.at(r, g);
      const std::size_t first = std::size_t{g} * kGroupColumns;
      float32x4_t part[kParts];
      uint32x4_t largest = vdupq_n_u32(0);  // magnitudes order as their bits do, NaN above all
      for (std::uint32_t i = 0; i < kParts; ++i) {
        part[i] = load_some(row, first + i * kLanes, cols);
        largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(part[i])));
      }
      const std::uint32_t most = vmaxvq_u32(largest);
      const bool finite = most < 0x7f800000u;
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
      int32x4_t sum = vdupq_n_s32(0);
      int8x8_t eight[kParts / 2];
      for (std::uint32_t i = 0; i < kParts; i += 2) {
        const int32x4_t low = round_codes(part[i], inverse), high = round_codes(part[i + 1], inverse);
        sum = vaddq_s32(sum, vaddq_s32(low, high));
        eight[i / 2] = vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high)));
      }
      for (std::uint32_t i = 0; i < 2; ++i) {
        const int8x16_t bytes = vcombine_s8(eight[2 * i], eight[2 * i + 1]);
        vst1q_s8(codes + i * 16, apart ? vqtbl1q_s8(bytes, parting) : bytes);
      }
      out.offsets[at] = -code_lift(f) * vaddvq_s32(sum);
    }
  }
}

void linear_int8(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
                 std::uint32_t tile_begin, std::uint32_t tile_end) {
  linear_by<WideningProducts>(w, x, tokens, y, y_stride, tile_begin, tile_end);
}

}  // namespace wisp::kernels::neon
