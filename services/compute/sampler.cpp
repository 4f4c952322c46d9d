#include "services/compute/sampler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "wisp/kernels/kernels.hpp"

namespace wisp::compute {

double philox_uniform(std::uint64_t seed, std::uint64_t position) {
  std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(position),
                                 static_cast<std::uint32_t>(position >> 32), 0, 0};
  std::array<std::uint32_t, 2> k{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  const std::uint64_t bits = (std::uint64_t{c[0]} << 32 | c[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

Result<std::uint32_t> Sampler::draw(std::span<const float> logits, const shm::RequestParams& params,
                                    std::uint32_t position) {
  const auto vocab = static_cast<std::uint32_t>(logits.size());
  // Several chains at once: one after the other, each comparison would wait for the one before.
  constexpr std::uint32_t kChains = 8;
  std::array<float, kChains> most;
  most.fill(-std::numeric_limits<float>::infinity());
  bool numbers = true;
  const auto look = [&](std::uint32_t chain, float x) {
    numbers &= !std::isnan(x);
    most[chain] = x > most[chain] ? x : most[chain];
  };
  std::uint32_t i = 0;
  for (; i + kChains <= vocab; i += kChains)
    for (std::uint32_t c = 0; c < kChains; ++c) look(c, logits[i + c]);
  for (; i < vocab; ++i) look(0, logits[i]);
  if (!numbers) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
    return corrupt("logit " + std::to_string(at - logits.begin()) + " is not a number");
  }
  const float top = *std::max_element(most.begin(), most.end());
  const auto best = static_cast<std::uint32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
  if (params.temperature <= 0.0f || params.top_k == 1) return best;

  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  order_.resize(vocab);
  std::iota(order_.begin(), order_.end(), 0u);
  std::uint32_t n = params.top_k == 0 ? vocab : std::min(params.top_k, vocab);
  if (n < vocab)
    std::partial_sort(order_.begin(), order_.begin() + n, order_.end(), before);
  else
    std::sort(order_.begin(), order_.end(), before);

  // Masses relative to the best candidate, in sorted order; every sum runs in that order.
  mass_.resize(n);
  double total = 0.0;
  for (std::uint32_t i = 0; i < n; ++i) {
    mass_[i] = kernels::canonical_exp((logits[order_[i]] - logits[best]) / params.temperature);
    total += mass_[i];
  }
  if (params.top_p < 1.0f) {
    double sum = 0.0;
    std::uint32_t keep = 0;
    while (keep < n && (keep == 0 || sum < params.top_p * total)) sum += mass_[keep++];
    n = keep;
    total = sum;
  }
  if (params.min_p > 0.0f) {
    std::uint32_t keep = 1;
    double sum = mass_[0];
    while (keep < n && mass_[keep] >= static_cast<double>(params.min_p) * mass_[0]) sum += mass_[keep++];
    n = keep;
    total = sum;
  }
  const double u = philox_uniform(params.seed, position) * total;
  double sum = 0.0;
  for (std::uint32_t i = 0; i < n; ++i) {
    sum += mass_[i];
    if (u < sum) return order_[i];
  }
  return order_[n - 1];
}

}  // namespace wisp::compute
