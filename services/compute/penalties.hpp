#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "shm/journal.hpp"

namespace wisp::compute {

/// Makes tokens that a text already has less likely, or more. In this order, all in float: the repetition
/// penalty r (Keskar et al. 2019, CTRL) turns a logit l whose token prompt or answer has into l / r, or into
/// l * r where l < 0; the frequency penalty is taken off once for each time that the answer has the token,
/// the presence penalty once where it has it at all (OpenAI's API). Keeps nothing of one sequence for the
/// next.
class Penalties {
 public:
  /// Makes room for a vocabulary and texts of `ctx` ids, so that nothing allocates later.
  void reserve(std::uint32_t vocab, std::uint32_t ctx);

  /// Where the ids of the next sequence go: [length], prompt and answer. Valid until the next call.
  std::span<std::uint32_t> text(std::size_t length);
  /// Counts what text() was filled with; the first `prompt` ids are the prompt's.
  void count(std::uint32_t prompt);
  /// One more token of the answer.
  void add(std::uint32_t id);
  /// `logits` [vocab] under the penalties of `params`. Valid until the next call.
  std::span<const float> apply(std::span<const float> logits, const shm::RequestParams& params);

 private:
  std::vector<std::uint32_t> text_;   ///< [ctx]
  std::vector<std::uint32_t> ids_;    ///< that the text has, each once
  std::vector<std::uint32_t> times_;  ///< [vocab] in the answer
  std::vector<bool> there_;           ///< [vocab] in prompt or answer: in ids_
  std::vector<float> logits_;         ///< [vocab]
};

}  // namespace wisp::compute
