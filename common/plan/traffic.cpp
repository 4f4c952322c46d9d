#include "plan/traffic.hpp"

#include <algorithm>
#include <cmath>

namespace wisp::plan {

namespace {

// Both fitted to the public routing traces of Qwen3-30B-A3B and gpt-oss-120b (tests/data/traces).
// Consecutive tokens choose alike: the experts of a layer that n of them touch are those of n^.65 tokens that
// choose independently (of 8 tokens 3.9 to 5.0 times those of one, of 32 7.1 to 11.9 times).
constexpr double kLikeness = 0.65;
// Misses of the cache in decoding with the share f of the experts in memory: exp(-6 f^.8); at 4, 10, 20, 35 %
// .63, .39, .19, .08 where the traces have .64 and .49, .40 and .29, .20 and .16, .07 and .11.
constexpr double kMissRate = 6.0;
constexpr double kMissPower = 0.8;

}  // namespace

Traffic expected_traffic(const RunPlan& p) {
  if (p.expert_extents == 0 || p.slots >= p.expert_extents) return {};
  const double experts = p.experts_per_layer, top_k = p.top_k;
  const double bank = static_cast<double>(p.expert_extents) * static_cast<double>(p.stride);
  const double resident = static_cast<double>(p.slots) / p.expert_extents;
  const std::uint32_t chunk = std::clamp<std::uint32_t>(p.prompt_chunk, 1, kNominalPrompt);
  const double chunks = (kNominalPrompt + chunk - 1) / chunk;  // NOLINT: whole ones
  const double touched = 1.0 - std::pow(1.0 - top_k / experts, std::pow(chunk, kLikeness));
  Traffic t;
  t.prompt = chunks * touched * (1.0 - resident) * bank;
  t.token = std::exp(-kMissRate * std::pow(resident, kMissPower)) * top_k / experts * bank;
  return t;
}

}  // namespace wisp::plan
