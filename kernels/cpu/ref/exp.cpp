#include <bit>
#include <cmath>

#include "cpu/exp_constants.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels {
namespace {

/// 2^n for n in [-126, 127]; any other n (only where x is NaN) gives some float.
float power_of_two(std::int32_t n) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(n) + 127u) << 23);
}

}  // namespace

float canonical_exp(float x) {
  using namespace exp_constants;
  x = kHighest < x ? kHighest : x;
  x = kLowest > x ? kLowest : x;
  const float shifted = std::fma(x, kLog2e, kRounder);
  const float n = shifted - kRounder;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float q = std::fma(kC4, r, kC3);
  q = std::fma(q, r, kC2);
  q = std::fma(q, r, kC1);
  q = std::fma(q, r, kC0);
  const float p = std::fma(q, r * r, r) + 1.0f;
  // Two factors, as 2^n alone would leave the normal range; only the second product can round.
  const auto whole = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                               std::bit_cast<std::uint32_t>(kRounder));
  const std::int32_t half = whole >> 1;
  return p * power_of_two(half) *
         power_of_two(
             static_cast<std::int32_t>(static_cast<std::uint32_t>(whole) - static_cast<std::uint32_t>(half)));
}

float canonical_sigmoid(float x) {
  return 1.0f / (1.0f + canonical_exp(-x));
}

float canonical_silu(float x) {
  return x / (1.0f + canonical_exp(-x));
}

void clamped_glu(float* gate, const float* up, std::size_t n, float limit, float alpha) {
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    float u = up[i] > limit ? limit : up[i];
    u = u < -limit ? -limit : u;
    gate[i] = (u + 1.0f) * (g * canonical_sigmoid(alpha * g));
  }
}

}  // namespace wisp::kernels
