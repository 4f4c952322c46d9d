#include "services/compute/rope_table.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace wisp::compute {

namespace {

/// See model::Llama3Spec.
double scaled(double frequency, const model::Llama3Spec& l) {
  const double turns = l.original_length * frequency / (2.0 * std::numbers::pi);
  const double kept = std::clamp((turns - l.low_turns) / (l.high_turns - l.low_turns), 0.0, 1.0);
  return frequency * kept + frequency / l.factor * (1.0 - kept);
}

}  // namespace

RopeFrequencies rope_frequencies(const model::RopeSpec& spec) {
  RopeFrequencies out;
  const double width = spec.width;
  for (std::uint32_t i = 0; i < spec.width / 2; ++i)
    out.frequency.push_back(std::pow(spec.theta, -2.0 * i / width));
  if (spec.llama3)
    for (double& f : out.frequency) f = scaled(f, *spec.llama3);
  if (!spec.yarn) return out;
  const model::YarnSpec& y = *spec.yarn;
  const auto corr = [&](double rho) {
    return width * std::log(y.original_length / (2.0 * std::numbers::pi * rho)) /
           (2.0 * std::log(spec.theta));
  };
  double lo = corr(y.beta_fast), hi = corr(y.beta_slow);
  if (y.truncate) {
    lo = std::floor(lo);
    hi = std::ceil(hi);
  }
  lo = std::max(lo, 0.0);
  hi = std::min(hi, width - 1.0);
  if (lo == hi) hi += 0.001;
  for (std::uint32_t i = 0; i < spec.width / 2; ++i) {
    const double ramp = std::clamp((i - lo) / (hi - lo), 0.0, 1.0);
    out.frequency[i] = out.frequency[i] * (1.0 - ramp) + out.frequency[i] / y.factor * ramp;
  }
  const auto m = [&](double mu) { return y.factor > 1.0 ? 0.1 * mu * std::log(y.factor) + 1.0 : 1.0; };
  if (y.mscale_all_dim != 0.0) out.score_factor = m(y.mscale_all_dim) * m(y.mscale_all_dim);
  if (y.attention_factor != 0.0)
    out.amplitude = y.attention_factor;
  else if (y.mscale != 0.0 && y.mscale_all_dim != 0.0)
    out.amplitude = m(y.mscale) / m(y.mscale_all_dim);
  else
    out.amplitude = m(1.0);
  return out;
}

RopeTables::RopeTables(const model::RopeSpec& spec, std::uint32_t positions) : width_(spec.width) {
  const RopeFrequencies f = rope_frequencies(spec);
  score_factor_ = f.score_factor;
  const std::size_t half = f.frequency.size();
  cos_.resize(half * positions);
  sin_.resize(half * positions);
  for (std::uint32_t p = 0; p < positions; ++p) {
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = p * f.frequency[i];
      cos_[p * half + i] = static_cast<float>(f.amplitude * std::cos(angle));
      sin_[p * half + i] = static_cast<float>(f.amplitude * std::sin(angle));
    }
  }
}

}  // namespace wisp::compute
