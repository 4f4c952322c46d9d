#pragma once
#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "trace/token_routes.hpp"

namespace wisp::model {

/// What routes are made for.
struct RouteShape {
  std::uint32_t layers = 0, experts = 0, top_k = 0;
};

inline constexpr const char* kCalibrated = "calibrated";

/// The routes of a model's tokens: `shape.layers` layers with exactly `shape.top_k` experts each.
///
/// From a trace: its layers are spread evenly over the model's, the first on the first and the last on the
/// last; of more experts than top_k the first stay; fewer are filled up with others, drawn by how often the
/// layer's tokens choose them (each once more than counted, so that none is impossible).
/// `tokens` takes so many from the trace's beginning; 0 = all. Errors: those of read_token_routes; kInvalid
/// where the trace has more experts or fewer layers than the model, or fewer tokens.
Result<trace::TokenRoutes> routes_of_trace(const std::string& path, const RouteShape& shape,
                                           std::uint32_t tokens, std::uint64_t seed);

/// Routes drawn to repeat as a real model's do. Each layer has its own order of popularity, in which weights
/// fall by a constant factor over a low floor: hardly in the first layers, and from 7/10 of the depth on by
/// 1 - 1 / (3/4 top_k + 5/2). A token keeps each expert of the token before with the share kKept; the others
/// are drawn by weight; now and then two experts change places.
///
/// Fitted to the trace of Qwen3-30B-A3B at top 6 of 128 (means over 48 layers, 128 tokens): overlap with the
/// token 1 / 2 / 4 / 8 back .38 .29 .28 .27, union of 2 / 4 / 8 / 16 / 32 tokens 1.62 2.59 3.93 5.6 7.1 of a
/// token's, half of the bank touched.
trace::TokenRoutes calibrated_routes(const RouteShape& shape, std::uint32_t tokens, std::uint64_t seed);

/// Routes of which each expert is the given one with the share `recall`, and else one that the token does not
/// choose there, each as likely.
trace::TokenRoutes forecast_of(const trace::TokenRoutes& routes, double recall, std::uint64_t seed);

}  // namespace wisp::model
