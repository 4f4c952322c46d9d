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

/// Scale `at` of a plane of a coded format.
inline float scale_to_float(WeightFormat f, const std::uint8_t* scales, std::size_t at) {
  if (f == WeightFormat::kMxfp4) return e8m0_to_float(scales[at]);
  std::uint16_t half;
  std::memcpy(&half, scales + 2 * at, 2);
  return bf16_to_float(half);
}

/// Value of an int4 code before its scale: c - 8, in [-8, 7].
inline float int4_to_float(std::uint32_t nibble) {
  return static_cast<float>(static_cast<int>(nibble) - 8);
}

}  // namespace wisp::kernels
