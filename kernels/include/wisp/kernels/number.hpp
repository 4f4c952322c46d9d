#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Widens a bf16 to f32, exactly.
inline float bf16_to_float(std::uint16_t h) {
  return std::bit_cast<float>(std::uint32_t{h} << 16);
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

/// Value of an int4 code before its scale: c - 8, in [-8, 7].
inline float int4_to_float(std::uint32_t nibble) {
  return static_cast<float>(static_cast<int>(nibble) - 8);
}

}  // namespace wisp::kernels
