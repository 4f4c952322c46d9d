#pragma once
#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "trace/route_trace.hpp"

/// Replays a routing trace through a cache of so many slots, without an engine.
///
/// All policies see a touch alike, as the engine does: its members that are in the table when it begins are
/// hits, the others are brought in one after the other, and none is brought twice.
namespace wisp::replay {

enum class Policy {
  kDefault,  ///< the engine's own, loader::CachePolicy
  kLru,      ///< evicts what was used longest ago: first what is not of the touch
  kBelady,   ///< keeps, of what was there and what the touch brought, what is used again soonest
};
/// "default", "lru", "belady". Errors: kInvalid names them.
Result<Policy> policy_of(std::string_view name);

struct Figures {
  std::uint64_t accesses = 0;
  std::uint64_t hits = 0;
  std::uint64_t decode_accesses = 0;  ///< of touches whose first line is of phase 1
  std::uint64_t decode_hits = 0;
};

/// `slots` from 1 on. Pure.
///
/// Belady's is the bound that no policy passes: since a touch may be larger than the cache, and an expert
/// that was multiplied need not stay, it may let a member go at once.
Figures replay(const trace::Trace& trace, std::uint32_t slots, Policy policy);

}  // namespace wisp::replay
