#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace wisp::compute {

/// Log-probabilities of a step: natural logarithms of the softmax of logits as the model gave them, before
/// penalties and temperature. A function of the logits alone, whose sum is canonical: the same bits at any
/// batch, with any drafts and in a repeated step. (On all machines too as far as their C libraries agree on
/// the one logarithm, which is taken in double and rounded to float.)
class Logprobs {
 public:
  /// Appends what is told of `token`, drawn from logits [vocab]: shm::logprob_words(asked) words. `asked`: as
  /// in RequestParams, 1 at least. The likeliest are listed whether `token` is among them or not, equal ones
  /// by their ids; places that the vocabulary does not fill hold shm::kNoToken. Logits are numbers or
  /// infinite.
  void tell(std::span<const float> logits, std::uint32_t token, std::uint32_t asked,
            std::vector<std::uint32_t>& out);

  /// Makes room for a vocabulary, so that no call allocates but for `out`.
  void reserve(std::uint32_t vocab) { mass_.resize(vocab); }

 private:
  std::vector<float> mass_;
};

}  // namespace wisp::compute
