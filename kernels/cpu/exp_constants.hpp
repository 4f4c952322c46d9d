#pragma once

/// Numbers of the canonical exp, shared by every table. Steps and proof of range: kernels/CANON.md "exp".
namespace wisp::kernels::exp_constants {

// Beyond these the result is inf or rounds to 0; the clamp keeps the exponent arithmetic in range.
inline constexpr float kHighest = 89.0f;
inline constexpr float kLowest = -104.0f;
inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kRounder = 0x1.8p+23f;    // adding it leaves the nearest integer in the low bits
inline constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits, so that n * kLn2High is exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;
// Minimax of (e^r - 1 - r) / r^2 for |r| <= ln2 / 2, error 3.7e-9 relative to e^r.
inline constexpr float kC0 = 0x1.fffffcp-2f;
inline constexpr float kC1 = 0x1.555492p-3f;
inline constexpr float kC2 = 0x1.5558f2p-5f;
inline constexpr float kC3 = 0x1.123a2p-7f;
inline constexpr float kC4 = 0x1.6a23d2p-10f;

}  // namespace wisp::kernels::exp_constants
