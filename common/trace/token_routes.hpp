#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/route_trace.hpp"

namespace wisp::trace {

/// A trace by tokens: which experts each token chose in each layer.
struct TokenRoutes {
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;  ///< per layer
  std::uint32_t top_k = 0;    ///< chosen by a token in a layer, at most
  std::uint32_t tokens = 0;
  std::vector<std::vector<std::uint32_t>> chosen;  ///< [tokens * layers], in order of rank

  const std::vector<std::uint32_t>& of(std::uint32_t token, std::uint32_t layer) const {
    return chosen[std::size_t{token} * layers + layer];
  }
};

/// Reads a file. A token is what lines with the same turn, phase and step name; they come in the order in
/// which they first appear. A step that holds several tokens says not which
/// chose what and is left out. A layer that a token has no lines of stays empty. Errors: those
/// of read_trace; kInvalid where no step is a token's.
Result<TokenRoutes> read_token_routes(const std::string& path);

/// How routes repeat: means over layers, and in a layer over all places. Layers that a token has no choice in
/// are left out there.
struct RouteStatistics {
  static constexpr std::array<std::uint32_t, 4> kLags{1, 2, 4, 8};
  static constexpr std::array<std::uint32_t, 5> kRuns{2, 4, 8, 16, 32};
  static constexpr std::uint32_t kLongRun = 128;
  std::array<double, 4> overlap{};  ///< share of a token's experts that the token so far back chose too
  std::array<double, 5> growth{};   ///< distinct experts of so many tokens in a row / a token's
  double touched = 0;               ///< share of a layer's experts that the first kLongRun tokens choose
};
/// What the routes are too short for stays 0.
RouteStatistics statistics_of(const TokenRoutes& routes);

}  // namespace wisp::trace
