#include "model/quantize.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "wisp/kernels/number.hpp"

namespace wisp::model {

namespace {
constexpr std::array kFactors{0.85f, 0.9f, 0.95f, 1.0f, 1.05f, 1.1f, 1.15f};

std::uint16_t nearest_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Signed codes for a scale, and the sums that better it.
struct Fit {
  double with_weights = 0.0;  ///< sum of weight * code
  double with_codes = 0.0;    ///< sum of code^2
  double error = 0.0;
};

Fit fit(std::span<const float> weights, float scale, std::uint8_t* codes) {
  Fit f;
  const float inverse = 1.0f / scale;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float code = std::clamp(std::nearbyint(weights[i] * inverse), -8.0f, 7.0f);
    const double off = static_cast<double>(weights[i]) - static_cast<double>(code * scale);
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(code) + 8);
    f.with_weights += static_cast<double>(weights[i]) * static_cast<double>(code);
    f.with_codes += static_cast<double>(code * code);
    f.error += off * off;
  }
  return f;
}
}  // namespace

std::uint16_t quantize_int4(std::span<const float> weights, std::uint8_t* codes, double& squared_error) {
  float largest = 0.0f;
  for (const float w : weights)
    if (std::abs(w) > std::abs(largest)) largest = w;
  // -8 is the end that reaches further, so it takes the largest weight, whatever its sign.
  const float start = largest / -8.0f;
  std::uint16_t best = 0;
  double least = -1.0;
  std::array<std::uint8_t, 128> tried;
  const auto take = [&](std::uint16_t scale, double error) {
    if (least >= 0.0 && error >= least) return;
    least = error;
    best = scale;
    std::copy_n(tried.data(), weights.size(), codes);
  };
  for (const float factor : kFactors) {
    std::uint16_t scale = nearest_bf16(start * factor);
    for (int round = 0; round < 2; ++round) {
      const float value = kernels::bf16_to_float(scale);
      if (value == 0.0f || !std::isfinite(1.0f / value)) break;
      const Fit f = fit(weights, value, tried.data());
      take(scale, f.error);
      if (f.with_codes == 0.0) break;
      scale = nearest_bf16(static_cast<float>(f.with_weights / f.with_codes));
    }
  }
  if (least < 0.0) {  // all zero, or too small for a scale
    std::fill_n(codes, weights.size(), std::uint8_t{8});
    least = 0.0;
    for (const float w : weights) least += static_cast<double>(w) * static_cast<double>(w);
  }
  squared_error += least;
  return best;
}

}  // namespace wisp::model
