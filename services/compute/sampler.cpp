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
  if (params.temperature <= 0.0f || params.top_k == 1 || std::isinf(top)) return best;

  // Masses relative to the best token: they and their sum do not need the order.
  mass_.resize(vocab);
  for (std::uint32_t t = 0; t < vocab; ++t) mass_[t] = (logits[t] - top) / params.temperature;
  kernels::best_kernels().softmax(mass_.data(), vocab);
  std::array<double, kChains> sums{};
  for (std::uint32_t t = 0; t < vocab; ++t) sums[t % kChains] += static_cast<double>(mass_[t]);
  double total = std::accumulate(sums.begin(), sums.end(), 0.0);

  // Candidates by rank. A draw rarely looks far, so only as many are put into their order as it asks for.
  order_.resize(vocab);
  std::iota(order_.begin(), order_.end(), 0u);
  std::uint32_t ranked = 0;
  const auto rank = [&](std::uint32_t end) {
    const auto before = [&](std::uint32_t x, std::uint32_t y) {
      return logits[x] > logits[y] || (logits[x] == logits[y] && x < y);
    };
    const auto first = order_.begin() + ranked, last = order_.begin() + end;
    if (last != order_.end()) std::nth_element(first, last, order_.end(), before);
    std::sort(first, last, before);
    ranked = end;
  };
  const auto mass_of = [&](std::uint32_t c) {
    constexpr std::uint32_t kAtOnce = 128;
    if (c >= ranked) rank(std::min(vocab, std::max(kAtOnce, 4 * ranked)));
    return static_cast<double>(mass_[order_[c]]);
  };

  std::uint32_t n = params.top_k == 0 ? vocab : std::min(params.top_k, vocab);
  if (n < vocab) {
    total = 0.0;
    for (std::uint32_t c = 0; c < n; ++c) total += mass_of(c);
  }
  if (params.top_p < 1.0f) {
    double sum = 0.0;
    std::uint32_t keep = 0;
    while (keep < n && (keep == 0 || sum < static_cast<double>(params.top_p) * total)) sum += mass_of(keep++);
    n = keep;
    total = sum;
  }
  if (params.min_p > 0.0f) {
    const double least = static_cast<double>(params.min_p) * mass_of(0);
    double sum = mass_of(0);
    std::uint32_t keep = 1;
    while (keep < n && mass_of(keep) >= least) sum += mass_of(keep++);
    n = keep;
    total = sum;
  }
  const double u = philox_uniform(params.seed, position) * total;
  double sum = 0.0;
  for (std::uint32_t c = 0; c < n; ++c) {
    sum += mass_of(c);
    if (u < sum) return order_[c];
  }
  return order_[n - 1];
}

}  // namespace wisp::compute
