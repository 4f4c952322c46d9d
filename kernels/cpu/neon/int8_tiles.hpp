#pragma once
#include "cpu/neon/coded_formats.hpp"
#include "wisp/kernels/int8_rows.hpp"

/// Products of the `fast` profile, for whatever multiplies bytes: int8.cpp and int8_dot.cpp. The sums of a
/// group are whole numbers, so their order is free. A multiplier has
///   kTokens: that a pass takes
///   Sum<Narrow>(): of 4 rows, empty; `Narrow`: the sum of a group is at most 8 products of 16 * 127 a lane
///   void add(w, x): products of 4 rows' bytes with the four codes of x in every dword, both signed
///   int32x4_t whole(): a number for each row
namespace wisp::kernels::neon {
namespace {

/// Codes of weights in 4 rows as signed bytes: vector i meets the codes 4 i to 4 i + 3 of the activations
/// (code_place).
struct NibbleBytes {
  static constexpr bool kNarrow = true;
  int8x16_t parts[2];
  explicit NibbleBytes(const std::uint8_t* p) {
    const Nibbles n(p);
    parts[0] = vreinterpretq_s8_u8(n.even);
    parts[1] = vreinterpretq_s8_u8(n.odd);
  }
};

/// Of codes that are multiplied as they are, with their sign: nothing was added to them (code_lift).
struct NoZeroPoints {
  static int32x4_t correct(int32x4_t sum, const std::uint8_t* /*scales*/, std::int32_t /*offset*/) {
    return sum;
  }
};

struct Int4Products : Int4 {
  using Step = NibbleBytes;
  static constexpr bool kHalves = false;
  static int32x4_t correct(int32x4_t sum, const std::uint8_t* /*scales*/, std::int32_t offset) {
    return vaddq_s32(sum, vdupq_n_s32(offset));
  }
};

struct Int4ZeroProducts : Int4Zero {
  using Step = NibbleBytes;
  static constexpr bool kHalves = false;
  /// `scales`: of the same 4 rows.
  static int32x4_t correct(int32x4_t sum, const std::uint8_t* scales, std::int32_t offset) {
    const uint32x4_t zeros = vandq_u32(load_dwords(scales), vdupq_n_u32(kZeroPointBits));
    return vmlsq_n_s32(sum, vreinterpretq_s32_u32(zeros), offset);
  }
};

struct Mxfp4Products : Mxfp4, NoZeroPoints {
  /// Twice the E2M1 numbers are whole.
  struct Step {
    static constexpr bool kNarrow = true;
    int8x16_t parts[2];
    explicit Step(const std::uint8_t* p) {
      constexpr std::int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
      const int8x16_t table = vld1q_s8(kTwice);
      const Nibbles n(p);
      parts[0] = vqtbl1q_s8(table, n.even);
      parts[1] = vqtbl1q_s8(table, n.odd);
    }
  };
  static constexpr bool kHalves = true;
};

struct Int8Products : Int8, NoZeroPoints {
  struct Step {
    static constexpr bool kNarrow = false;
    int8x16_t parts[1];
    explicit Step(const std::uint8_t* p) : parts{vreinterpretq_s8_u8(vld1q_u8(p))} {}
  };
  static constexpr bool kHalves = false;
};

inline int8x16_t four_codes(const std::int8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

/// t_g of 4 rows.
template <class Format>
inline float32x4_t group_sum(int32x4_t whole, const std::uint8_t* scales, std::int32_t offset) {
  const int32x4_t sum = Format::correct(whole, scales, offset);
  if constexpr (Format::kHalves) return vcvtq_n_f32_s32(sum, 1);
  return vcvtq_f32_s32(sum);
}

template <class Multiplier, class Format, std::uint32_t Tokens>
void tile_of_tokens(const WeightView& w, std::uint32_t tile, const Int8Rows& x, float* y,
                    std::size_t y_stride) {
  using Step = typename Format::Step;
  using Sum = typename Multiplier::template Sum<Step::kNarrow>;
  constexpr std::size_t kDwordBytes = kTileRows * 4;
  constexpr std::uint32_t kGroupsInBlock = kBlockColumns / kGroupColumns;
  constexpr std::uint32_t kColumns = columns_per_dword(Format::kFormat);
  constexpr std::uint32_t kDwords = kGroupColumns / kColumns;
  constexpr std::size_t kScaleBytes = traits_of(Format::kFormat).scale_bytes;
  const std::uint32_t dwords = dwords_of(w.format, w.cols);
  const std::size_t tile_bytes = dwords * kDwordBytes;
  const std::uint8_t* codes = w.codes + tile * tile_bytes;
  const std::uint8_t* scales = w.scales + tile * tile_scale_bytes(Format::kFormat, w.cols, w.group);
  const std::uint32_t per_scale = w.group / kGroupColumns;
  Sixteen sum[Tokens] = {}, block[Tokens] = {};
  for (std::uint32_t g = 0; g < x.groups; ++g) {
    if (g % kGroupsInBlock == 0)
      for (Sixteen& of_token : block) of_token = splat(0.0f);
    Sum products[Tokens][kVectors];
    const std::uint32_t live = dwords - g * kDwords < kDwords ? dwords - g * kDwords : kDwords;
    for (std::uint32_t d = 0; d < live; ++d, codes += kDwordBytes) {
      prefetch(codes, tile_bytes);
      const Step steps[kVectors] = {Step(codes), Step(codes + 16), Step(codes + 32), Step(codes + 48)};
      for (std::uint32_t t = 0; t < Tokens; ++t) {
        const std::int8_t* xt = x.codes + x.at(t, g) * kGroupColumns + d * kColumns;
        for (std::uint32_t part = 0; part < kColumns / 4; ++part) {
          const int8x16_t four = four_codes(xt + part * 4);
          for (std::uint32_t v = 0; v < kVectors; ++v) products[t][v].add(steps[v].parts[part], four);
        }
      }
    }
    const std::uint8_t* of_group = scales + std::size_t{g / per_scale} * kTileRows * kScaleBytes;
    const Sixteen factors = Format::scales(of_group);
    for (std::uint32_t t = 0; t < Tokens; ++t) {
      const std::size_t at = x.at(t, g);
      for (std::uint32_t v = 0; v < kVectors; ++v) {
        const float32x4_t whole =
            group_sum<Format>(products[t][v].whole(), of_group + v * 4 * kScaleBytes, x.offsets[at]);
        block[t].v[v] = vfmaq_f32(block[t].v[v], whole, vmulq_n_f32(factors.v[v], x.scales[at]));
      }
    }
    if ((g + 1) % kGroupsInBlock != 0 && g + 1 != x.groups) continue;
    for (std::uint32_t t = 0; t < Tokens; ++t) add_block(block[t], g < kGroupsInBlock, sum[t]);
  }
  for (std::uint32_t t = 0; t < Tokens; ++t) store_some(y + t * y_stride, tile * kTileRows, w.rows, sum[t]);
}

/// `linear_int8` with the multiplier.
template <class Multiplier>
void linear_by(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
               std::uint32_t tile_begin, std::uint32_t tile_end) {
  const auto as = [&]<class Format>() {
    for (std::uint32_t tile = tile_begin; tile < tile_end; ++tile) {
      for_passes<Multiplier::kTokens>(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
        tile_of_tokens<Multiplier, Format, N>(w, tile, x.from(t), y + t * y_stride, y_stride);
      });
    }
  };
  switch (w.format) {
    case WeightFormat::kInt4:
      return as.template operator()<Int4Products>();
    case WeightFormat::kInt4Zero:
      return as.template operator()<Int4ZeroProducts>();
    case WeightFormat::kMxfp4:
      return as.template operator()<Mxfp4Products>();
    case WeightFormat::kInt8:
      return as.template operator()<Int8Products>();
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
    case WeightFormat::kFp8:
      break;
  }
}

}  // namespace
}  // namespace wisp::kernels::neon
