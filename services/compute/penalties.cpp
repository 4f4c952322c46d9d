#include "services/compute/penalties.hpp"

#include <algorithm>

namespace wisp::compute {

void Penalties::reserve(std::uint32_t vocab, std::uint32_t ctx) {
  text_.resize(ctx);
  ids_.reserve(std::min(vocab, ctx));
  times_.resize(vocab);
  there_.resize(vocab);
  logits_.resize(vocab);
}

std::span<std::uint32_t> Penalties::text(std::size_t length) {
  for (const std::uint32_t id : ids_) {
    times_[id] = 0;
    there_[id] = false;
  }
  ids_.clear();
  text_.resize(length);
  return text_;
}

void Penalties::count(std::uint32_t prompt) {
  for (std::size_t i = 0; i < text_.size(); ++i) {
    add(text_[i]);
    if (i < prompt && text_[i] < times_.size()) times_[text_[i]] = 0;
  }
}

void Penalties::add(std::uint32_t id) {
  if (id >= times_.size()) return;  // it has no logit
  ++times_[id];
  if (there_[id]) return;
  there_[id] = true;
  ids_.push_back(id);
}

std::span<const float> Penalties::apply(std::span<const float> logits, const shm::RequestParams& params) {
  logits_.assign(logits.begin(), logits.end());
  for (const std::uint32_t id : ids_) {
    float& l = logits_[id];
    if (params.repetition_penalty != 1.0f)
      l = l < 0.0f ? l * params.repetition_penalty : l / params.repetition_penalty;
    if (times_[id] == 0) continue;
    l -= params.frequency_penalty * static_cast<float>(times_[id]);
    l -= params.presence_penalty;
  }
  return logits_;
}

}  // namespace wisp::compute
