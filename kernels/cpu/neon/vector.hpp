#pragma once
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/exp_constants.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::kernels::neon {
namespace {

inline constexpr std::size_t kLanes = 4;

/// 16 numbers: the rows of a tile, the positions of a page, the lanes of a sum. Number i is lane i % 4 of
/// vector i / 4.
inline constexpr std::uint32_t kVectors = 4;
struct Sixteen {
  float32x4_t v[kVectors];
};

inline Sixteen splat(float x) {
  const float32x4_t four = vdupq_n_f32(x);
  return {{four, four, four, four}};
}

/// a <- fma(x, y, a)
inline void fma(const Sixteen& x, const Sixteen& y, Sixteen& a) {
  for (std::uint32_t i = 0; i < kVectors; ++i) a.v[i] = vfmaq_f32(a.v[i], x.v[i], y.v[i]);
}
inline void fma(const Sixteen& x, float y, Sixteen& a) {
  for (std::uint32_t i = 0; i < kVectors; ++i) a.v[i] = vfmaq_n_f32(a.v[i], x.v[i], y);
}

/// The sum of blocks so far with one more, the first taken as it is.
inline void add_block(const Sixteen& block, bool first, Sixteen& sum) {
  for (std::uint32_t i = 0; i < kVectors; ++i)
    sum.v[i] = first ? block.v[i] : vaddq_f32(sum.v[i], block.v[i]);
}

/// Loads x[i .. i+4), lanes at or beyond n as +0 and without touching their memory.
inline float32x4_t load_some(const float* x, std::size_t i, std::size_t n) {
  if (i + kLanes <= n) return vld1q_f32(x + i);
  float four[kLanes] = {};
  if (i < n) std::memcpy(four, x + i, (n - i) * sizeof *x);
  return vld1q_f32(four);
}

/// Stores v to x[i .. i+4), leaving what lies at or beyond n.
inline void store_some(float* x, std::size_t i, std::size_t n, float32x4_t v) {
  if (i + kLanes <= n) {
    vst1q_f32(x + i, v);
  } else if (i < n) {
    float four[kLanes];
    vst1q_f32(four, v);
    std::memcpy(x + i, four, (n - i) * sizeof *x);
  }
}

/// Stores to x[i .. i+16), leaving what lies at or beyond n.
inline void store_some(float* x, std::size_t i, std::size_t n, const Sixteen& y) {
  for (std::uint32_t j = 0; j < kVectors; ++j) store_some(x, i + j * kLanes, n, y.v[j]);
}

/// Four bf16 numbers, widened.
inline float32x4_t widen_bf16(uint16x4_t halves) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(halves), 16));
}

/// 2^n by lanes, as power_of_two in ref.
inline float32x4_t power_of_two(int32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

/// canonical_exp by lanes: the steps of cpu/ref/exp.cpp one for one.
inline float32x4_t exp(float32x4_t x) {
  using namespace exp_constants;
  x = vminq_f32(x, vdupq_n_f32(kHighest));  // min and max give NaN where either is
  x = vmaxq_f32(x, vdupq_n_f32(kLowest));
  const float32x4_t rounder = vdupq_n_f32(kRounder);
  const float32x4_t shifted = vfmaq_f32(rounder, x, vdupq_n_f32(kLog2e));
  const float32x4_t n = vsubq_f32(shifted, rounder);
  float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-kLn2High));
  r = vfmaq_f32(r, n, vdupq_n_f32(-kLn2Low));
  float32x4_t q = vfmaq_f32(vdupq_n_f32(kC3), vdupq_n_f32(kC4), r);
  q = vfmaq_f32(vdupq_n_f32(kC2), q, r);
  q = vfmaq_f32(vdupq_n_f32(kC1), q, r);
  q = vfmaq_f32(vdupq_n_f32(kC0), q, r);
  const float32x4_t p = vaddq_f32(vfmaq_f32(r, q, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
  const int32x4_t whole = vsubq_s32(vreinterpretq_s32_f32(shifted), vreinterpretq_s32_f32(rounder));
  const int32x4_t half = vshrq_n_s32(whole, 1);
  return vmulq_f32(vmulq_f32(p, power_of_two(half)), power_of_two(vsubq_s32(whole, half)));
}

/// The tree of a reduction.
inline float sum_lanes(const Sixteen& x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/// Asks for the line `ahead` bytes behind `line`, into the second-level cache; never faults, so it may lie
/// beyond the weights. One tile ahead, as in avx2; what it brings on ARM has not been measured. Always
/// inline: GCC 12 drops the call of a function that does nothing but prefetch.
inline __attribute__((always_inline)) void prefetch(const std::uint8_t* line, std::size_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(line) + ahead), 0, 2);
}

/// Calls pass<N>(t) for tokens t .. t + N of each pass: as even as `Most` (2 or 4) at a time allows.
template <std::uint32_t Most, class Pass>
inline void for_passes(std::uint32_t tokens, const Pass& pass) {
  for (std::uint32_t t = 0; t < tokens;) {
    const std::uint32_t left = tokens - t;
    const std::uint32_t n = left <= Most ? left : left < 2 * Most ? (left + 1) / 2 : Most;
    if constexpr (Most > 2) {
      if (n == 4) pass.template operator()<4>(t);
      if (n == 3) pass.template operator()<3>(t);
    }
    if (n == 2) pass.template operator()<2>(t);
    if (n == 1) pass.template operator()<1>(t);
    t += n;
  }
}

}  // namespace
}  // namespace wisp::kernels::neon
