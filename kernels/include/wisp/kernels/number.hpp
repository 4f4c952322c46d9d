#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Widens a bf16 to f32, exactly.
inline float bf16_to_float(std::uint16_t h) {
  return std::bit_cast<float>(std::uint32_t{h} << 16);
}

/// The nearest bf16, ties to even; beyond the largest one inf; a NaN stays a NaN.
inline std::uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/// Widens an IEEE half to f32, exactly (subnormals too; a NaN stays a NaN).
inline float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = (std::uint32_t{h} & 0x8000u) << 16;
  const std::uint32_t exponent = (std::uint32_t{h} >> 10) & 0x1fu;
  const std::uint32_t fraction = std::uint32_t{h} & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

/// The number at `p`, stored as f32, bf16 or f16; exact.
inline float plain_to_float(WeightFormat f, const void* p) {
  if (f == WeightFormat::kF32) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
  std::uint16_t h;
  std::memcpy(&h, p, 2);
  return f == WeightFormat::kBf16 ? bf16_to_float(h) : f16_to_float(h);
}

/// E2M1: sign, two bits of exponent, one of fraction; in [-6, 6].
inline float e2m1_to_float(std::uint32_t nibble) {
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitudes[nibble & 7u];
  return (nibble & 8u) != 0 ? -magnitude : magnitude;
}

/// E8M0: 2^(s - 127) for s in [0, 254]; 255 means NaN, and no converted weight has it.
inline float e8m0_to_float(std::uint8_t s) {
  return std::bit_cast<float>(s == 0 ? 0x00400000u : std::uint32_t{s} << 23);
}

/// E4M3: sign, four bits of exponent, three of fraction; in [-448, 448]. No infinity; the two codes 0x7f and
/// 0xff mean NaN, and no converted weight has them.
inline float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = (std::uint32_t{code} & 0x80u) << 24;
  const std::uint32_t magnitude = (std::uint32_t{code} & 0x7fu) << 20;
  return std::bit_cast<float>(sign | magnitude) * 0x1p120f;
}

/// What the codes of a group are multiplied by, after `zero` was taken from them.
struct Scale {
  float factor = 1.0f;
  float zero = 0.0f;
};
inline constexpr std::uint32_t kZeroPointBits = 31;  ///< of a dword of kInt4Zero

/// The scale at `p` of a coded format.
inline Scale scale_at(WeightFormat f, const std::uint8_t* p) {
  std::uint32_t dword = 0;
  std::uint16_t half = 0;
  switch (f) {
    case WeightFormat::kMxfp4:
      return {e8m0_to_float(*p), 0.0f};
    case WeightFormat::kInt4:
    case WeightFormat::kInt8:
      std::memcpy(&half, p, 2);
      return {bf16_to_float(half), f == WeightFormat::kInt4 ? 8.0f : 0.0f};
    case WeightFormat::kInt4Zero:
      std::memcpy(&dword, p, 4);
      return {std::bit_cast<float>(dword & ~kZeroPointBits), static_cast<float>(dword & kZeroPointBits)};
    case WeightFormat::kFp8:
      std::memcpy(&dword, p, 4);
      return {std::bit_cast<float>(dword), 0.0f};
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      break;
  }
  return {};
}
/// The scale of element (row, col).
inline Scale scale_of(const WeightView& w, std::uint32_t row, std::uint32_t col) {
  const FormatTraits& t = traits_of(w.format);
  const std::size_t group = std::size_t{row / kTileRows} * groups_of(w.cols, w.group) + col / w.group;
  return scale_at(w.format, w.scales + (group * t.scale_rows + row % t.scale_rows) * t.scale_bytes);
}

/// Number `col` of a row, in the bits of its dword, before scale and zero point.
inline float code_to_float(WeightFormat f, std::uint32_t bits, std::uint32_t col) {
  switch (f) {
    case WeightFormat::kF32:
      return std::bit_cast<float>(bits);
    case WeightFormat::kBf16:
      return bf16_to_float(static_cast<std::uint16_t>(bits >> (16 * (col % 2))));
    case WeightFormat::kF16:
      return f16_to_float(static_cast<std::uint16_t>(bits >> (16 * (col % 2))));
    case WeightFormat::kInt4:
    case WeightFormat::kInt4Zero:
      return static_cast<float>((bits >> (4 * (col % 8))) & 15u);
    case WeightFormat::kMxfp4:
      return e2m1_to_float((bits >> (4 * (col % 8))) & 15u);
    case WeightFormat::kInt8:
      return static_cast<float>(static_cast<std::int8_t>(bits >> (8 * (col % 4))));
    case WeightFormat::kFp8:
      return e4m3_to_float(static_cast<std::uint8_t>(bits >> (8 * (col % 4))));
  }
  return 0.0f;
}
/// Element (row, col) before its scale, as a dword's bits: the first column of a dword is in the low ones.
inline std::uint32_t dword_at(const WeightView& w, std::uint32_t row, std::uint32_t col) {
  const std::size_t dword =
      std::size_t{row / kTileRows} * dwords_of(w.format, w.cols) + col / columns_per_dword(w.format);
  std::uint32_t bits = 0;
  std::memcpy(&bits, w.codes + (dword * kTileRows + row % kTileRows) * 4, 4);
  return bits;
}

}  // namespace wisp::kernels
