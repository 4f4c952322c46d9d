#include "model/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "wisp/kernels/number.hpp"

namespace wisp::model {

namespace {
constexpr std::array kFactors{0.9f, 0.95f, 1.0f, 1.05f, 1.1f};
constexpr std::size_t kLanes = 8;

/// A signed code. Adding and taking away 1.5 * 2^23 rounds to a whole number without a call.
float code_of(float weight, float inverse) {
  const float scaled = std::min(std::max(weight * inverse, -8.0f), 7.0f);
  return (scaled + 12582912.0f) - 12582912.0f;
}

/// The error of a scale, and the scale that is best for its codes.
struct Fit {
  float error = 0.0f;
  float better = 0.0f;
};

/// In lanes, so that a compiler without leave to reorder sums can still use vectors.
Fit fit(std::span<const float> weights, float scale) {
  const float inverse = 1.0f / scale;
  float with_weights[kLanes] = {}, with_codes[kLanes] = {}, error[kLanes] = {};
  for (std::size_t i = 0; i < weights.size(); i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float w = weights[i + l], code = code_of(w, inverse), off = w - code * scale;
      with_weights[l] += w * code;
      with_codes[l] += code * code;
      error[l] += off * off;
    }
  }
  Fit f;
  float a = 0.0f, b = 0.0f;
  for (std::size_t l = 0; l < kLanes; ++l) {
    a += with_weights[l];
    b += with_codes[l];
    f.error += error[l];
  }
  if (b > 0.0f) f.better = a / b;
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
  float least = -1.0f;
  for (const float factor : kFactors) {
    std::uint16_t scale = kernels::float_to_bf16(start * factor);
    for (int round = 0; round < 2; ++round) {
      const float value = kernels::bf16_to_float(scale);
      if (value == 0.0f || !std::isfinite(1.0f / value)) break;
      const Fit f = fit(weights, value);
      if (least < 0.0f || f.error < least) {
        least = f.error;
        best = scale;
      }
      scale = kernels::float_to_bf16(f.better);
    }
  }
  // Where all is zero, or too small for a scale, the scale is 0 and the codes are those of zero.
  const float value = kernels::bf16_to_float(best), inverse = best == 0 ? 0.0f : 1.0f / value;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float code = code_of(weights[i], inverse);
    const double off = static_cast<double>(weights[i]) - static_cast<double>(code * value);
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(code) + 8);
    squared_error += off * off;
  }
  return best;
}

std::uint16_t quantize_int8(std::span<const float> weights, std::uint8_t* codes, double& squared_error) {
  float largest = 0.0f;
  for (const float w : weights) largest = std::max(largest, std::abs(w));
  std::uint16_t scale = kernels::float_to_bf16(largest / 127.0f);
  if (!std::isfinite(1.0f / kernels::bf16_to_float(scale))) scale = 0;
  const float value = kernels::bf16_to_float(scale), inverse = scale == 0 ? 0.0f : 1.0f / value;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float code = std::nearbyint(std::min(std::max(weights[i] * inverse, -127.0f), 127.0f));
    const double off = static_cast<double>(weights[i]) - static_cast<double>(code * value);
    codes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code));
    squared_error += off * off;
  }
  return scale;
}

}  // namespace wisp::model
