#include "services/compute/logprobs.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.hpp"
#include "shm/journal.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::compute {

namespace {
/// Ids of the likeliest tokens in order, equal ones by id.
struct Likeliest {
  std::array<std::uint32_t, shm::kMostTopLogprobs> ids;
  std::uint32_t count = 0;
};

/// Of `n` tokens, fewer where the vocabulary has fewer.
Likeliest likeliest(std::span<const float> logits, std::uint32_t n) {
  Likeliest best;
  for (std::uint32_t t = 0; n > 0 && t < logits.size(); ++t) {
    if (best.count == n && !(logits[t] > logits[best.ids[n - 1]])) continue;
    std::uint32_t at = best.count < n ? best.count++ : n - 1;
    for (; at > 0 && logits[t] > logits[best.ids[at - 1]]; --at) best.ids[at] = best.ids[at - 1];
    best.ids[at] = t;
  }
  return best;
}
}  // namespace

void Logprobs::tell(std::span<const float> logits, std::uint32_t token, std::uint32_t asked,
                    std::vector<std::uint32_t>& out) {
  WISP_CHECK(token < logits.size() && asked > 0 && asked <= 1 + shm::kMostTopLogprobs);
  const auto vocab = static_cast<std::uint32_t>(logits.size());
  const auto first = std::max_element(logits.begin(), logits.end());
  const float top = *first;
  // Of the best, whatever it is, the distance is 0: infinite ones would have none.
  mass_.resize(vocab);
  for (std::uint32_t t = 0; t < vocab; ++t) mass_[t] = logits[t] == top ? 0.0f : logits[t] - top;
  kernels::best_kernels().softmax(mass_.data(), vocab);
  const double log_top =
      std::log(static_cast<double>(mass_[static_cast<std::size_t>(first - logits.begin())]));
  const auto logprob = [&](std::uint32_t t) {
    const double gap = logits[t] == top ? 0.0 : static_cast<double>(logits[t]) - static_cast<double>(top);
    const auto value = static_cast<float>(gap + log_top);
    return std::bit_cast<std::uint32_t>(value > shm::kLeastLogprob ? value : shm::kLeastLogprob);
  };
  out.push_back(logprob(token));
  const Likeliest best = likeliest(logits, asked - 1);
  for (std::uint32_t n = 0; n + 1 < asked; ++n) {
    out.push_back(n < best.count ? best.ids[n] : shm::kNoToken);
    out.push_back(n < best.count ? logprob(best.ids[n]) : std::bit_cast<std::uint32_t>(shm::kLeastLogprob));
  }
}

}  // namespace wisp::compute
