#pragma once
#include <cstdint>
#include <vector>

#include "model/model_spec.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::compute {

/// Owns cos and sin [positions, width/2]: computed in double (spec 2.2, 2.3), rounded once to f32.
class RopeTables {
 public:
  RopeTables(const model::RopeSpec& spec, std::uint32_t positions);
  kernels::RopeTable table() const { return {width_, cos_.data(), sin_.data()}; }
  /// See RopeFrequencies.
  double score_factor() const { return score_factor_; }

 private:
  std::uint32_t width_;
  double score_factor_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

/// Frequencies f_i [width/2] and the factor on cos and sin, YaRN (spec 2.3) or Llama 3's scaling applied.
struct RopeFrequencies {
  std::vector<double> frequency;
  double amplitude = 1.0;
  double score_factor = 1.0;  ///< latent attention multiplies its scores by it
};
RopeFrequencies rope_frequencies(const model::RopeSpec& spec);

}  // namespace wisp::compute
