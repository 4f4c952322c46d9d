#pragma once
#include "plan/run_plan.hpp"

/// What a laid-out run is expected to read of its experts. Estimates: they choose between layouts and inform
/// people, nothing else depends on them.
namespace wisp::plan {

/// The request that layouts are compared by.
inline constexpr std::uint32_t kNominalPrompt = 512;
inline constexpr std::uint32_t kNominalAnswer = 128;

/// Bytes read from the drive once the cache is full.
struct Traffic {
  double prompt = 0;  ///< of kNominalPrompt tokens
  double token = 0;   ///< of an answer
  double request() const { return prompt + kNominalAnswer * token; }
};
Traffic expected_traffic(const RunPlan& plan);

}  // namespace wisp::plan
