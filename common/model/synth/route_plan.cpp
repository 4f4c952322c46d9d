#include "model/synth/route_plan.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "model/synth/random_weights.hpp"

namespace wisp::model {

namespace {

// The fit: see calibrated_routes.
constexpr double kKept = 0.17;         ///< of a token's experts, by the next token, beside what chance keeps
constexpr double kMoved = 0.1;         ///< pairs of experts that change places, per token
constexpr double kFloor = 0.001;       ///< of the most popular expert's weight
constexpr double kFlattest = 0.02;     ///< share of the decay that the first layer has
constexpr double kSteepestFrom = 0.7;  ///< of the depth, where the decay is whole

double uniform(Random& random) {
  return static_cast<double>(random.next() >> 11) * 0x1p-53;
}

/// A place in `weights` by weight, whose sum is above 0.
std::size_t draw(const std::vector<double>& weights, Random& random) {
  double at = uniform(random) * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0.0) continue;
    last = i;
    if (at < weights[i]) break;
    at -= weights[i];
  }
  return last;  // the sum is rounded: the last one that has a weight
}

std::vector<double> popularity(const RouteShape& shape, std::uint32_t layer) {
  const double depth = (layer + 0.5) / shape.layers;
  const double share = std::min(1.0, kFlattest + (1.0 - kFlattest) * depth / kSteepestFrom);
  const double factor = 1.0 - share / (0.75 * shape.top_k + 2.5);
  std::vector<double> w(shape.experts);
  double x = 1.0;
  for (double& out : w) {
    out = x + kFloor;
    x *= factor;
  }
  return w;
}

/// Adds experts that are not in `set` until it holds `top_k`, by weight.
void fill_up(std::vector<std::uint32_t>& set, std::uint32_t top_k, std::vector<double> weights,
             const std::vector<std::uint32_t>& expert_at, Random& random) {
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (std::ranges::find(set, expert_at[i]) != set.end()) weights[i] = 0.0;
  while (set.size() < top_k) {
    const std::size_t i = draw(weights, random);
    weights[i] = 0.0;
    set.push_back(expert_at[i]);
  }
}

std::vector<std::uint32_t> in_order(std::uint32_t n) {
  std::vector<std::uint32_t> out(n);
  std::iota(out.begin(), out.end(), 0u);
  return out;
}

trace::TokenRoutes empty_routes(const RouteShape& s, std::uint32_t tokens) {
  trace::TokenRoutes r{s.layers, s.experts, s.top_k, tokens, {}};
  r.chosen.resize(std::size_t{tokens} * s.layers);
  return r;
}

}  // namespace

Result<trace::TokenRoutes> routes_of_trace(const std::string& path, const RouteShape& shape,
                                           std::uint32_t tokens, std::uint64_t seed) {
  WISP_ASSIGN(const trace::TokenRoutes from, trace::read_token_routes(path));
  const auto count = [](std::uint32_t n, const char* what) { return std::to_string(n) + " " + what; };
  if (from.experts > shape.experts)
    return invalid(path + " chooses among " + count(from.experts, "experts, the model has ") +
                   std::to_string(shape.experts) + ": give --experts " + std::to_string(from.experts) +
                   " or more");
  if (from.layers < shape.layers)
    return invalid(path + " has " + count(from.layers, "layers, the model ") + std::to_string(shape.layers) +
                   ": give --layers " + std::to_string(from.layers) + " or fewer");
  if (tokens > from.tokens)
    return invalid(path + " has " + count(from.tokens, "tokens, fewer than --route-tokens ") +
                   std::to_string(tokens));
  trace::TokenRoutes to = empty_routes(shape, tokens == 0 ? from.tokens : tokens);
  const Random base = Random(seed).of(kRouteStream, 0, 0);
  const std::vector<std::uint32_t> every = in_order(shape.experts);
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::uint32_t source =
        shape.layers == 1 ? 0 : (layer * (from.layers - 1) + (shape.layers - 1) / 2) / (shape.layers - 1);
    std::vector<double> chosen(shape.experts, 1.0);
    for (std::uint32_t t = 0; t < from.tokens; ++t)
      for (const std::uint32_t e : from.of(t, source)) chosen[e] += 1.0;
    for (std::uint32_t t = 0; t < to.tokens; ++t) {
      std::vector<std::uint32_t>& set = to.chosen[std::size_t{t} * shape.layers + layer];
      set = from.of(t, source);
      if (set.size() > shape.top_k) set.resize(shape.top_k);
      Random random = base.of(layer, t, 0);
      fill_up(set, shape.top_k, chosen, every, random);
    }
  }
  return to;
}

trace::TokenRoutes calibrated_routes(const RouteShape& shape, std::uint32_t tokens, std::uint64_t seed) {
  trace::TokenRoutes r = empty_routes(shape, tokens);
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    Random random = Random(seed).of(kRouteStream, 1, layer);
    const std::vector<double> weights = popularity(shape, layer);
    std::vector<std::uint32_t> expert_at = in_order(shape.experts);  // by popularity
    for (std::uint32_t i = shape.experts; i > 1; --i)
      std::swap(expert_at[i - 1], expert_at[random.next() % i]);
    const std::vector<std::uint32_t>* before = nullptr;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      std::vector<std::uint32_t>& set = r.chosen[std::size_t{t} * shape.layers + layer];
      if (before != nullptr)
        std::ranges::copy_if(*before, std::back_inserter(set), [&](auto) { return uniform(random) < kKept; });
      fill_up(set, shape.top_k, weights, expert_at, random);
      if (uniform(random) < kMoved)
        std::swap(expert_at[random.next() % shape.experts], expert_at[random.next() % shape.experts]);
      before = &set;
    }
  }
  return r;
}

trace::TokenRoutes forecast_of(const trace::TokenRoutes& routes, double recall, std::uint64_t seed) {
  trace::TokenRoutes r = routes;
  Random random = Random(seed).of(kRouteStream, 2, 0);
  for (std::size_t i = 0; i < r.chosen.size(); ++i) {
    const auto& truth = routes.chosen[i];
    std::vector<double> others(routes.experts, 1.0);
    for (const std::uint32_t e : truth) others[e] = 0.0;
    for (std::uint32_t& e : r.chosen[i]) {
      if (uniform(random) < recall) continue;
      const std::size_t other = draw(others, random);
      if (others[other] <= 0.0) continue;  // every expert is chosen
      others[other] = 0.0;
      e = static_cast<std::uint32_t>(other);
    }
  }
  return r;
}

}  // namespace wisp::model
