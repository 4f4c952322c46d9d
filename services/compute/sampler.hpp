#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "shm/journal.hpp"

namespace wisp::compute {

/// Draws the token at absolute position `position` from logits [vocab]: greedy (lowest id on ties) where the
/// temperature is 0; else temperature, top-k, top-p, min-p over the candidates sorted by (logit descending,
/// id ascending). The random number is a function of (seed, position): no hidden state, so a repeated step
/// draws the same token. Errors: kCorrupt where a logit is not a number.
class Sampler {
 public:
  Result<std::uint32_t> draw(std::span<const float> logits, const shm::RequestParams& params,
                             std::uint32_t position);

  /// Makes room for a vocabulary, so that no draw allocates.
  void reserve(std::uint32_t vocab) {
    order_.resize(vocab);
    mass_.resize(vocab);
  }

 private:
  std::vector<std::uint32_t> order_;
  std::vector<float> mass_;
};

/// Philox 4x32-10 (Salmon et al. 2011), counter = position, key = seed: a number in [0, 1) with 53 bits.
double philox_uniform(std::uint64_t seed, std::uint64_t position);

}  // namespace wisp::compute
