#include "trace/token_routes.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace wisp::trace {

namespace {

/// A step's lines: its experts by rank in each layer.
using Step = std::vector<std::vector<std::uint32_t>>;

/// Takes a line of a layer's choices: one that names an expert or a rank again is of another token.
bool add(std::vector<std::uint32_t>& layer, const RouteLine& r) {
  if (r.rank != layer.size() || std::ranges::find(layer, r.expert) != layer.end()) return false;
  layer.push_back(r.expert);
  return true;
}

/// Of one layer: the tokens that chose there, and for each expert which they were.
class LayerStatistics {
 public:
  LayerStatistics(const TokenRoutes& r, std::uint32_t layer) {
    for (std::uint32_t t = 0; t < r.tokens; ++t)
      if (!r.of(t, layer).empty()) sets_.push_back(&r.of(t, layer));
    last_.resize(r.experts);
  }

  double overlap(std::size_t lag) {
    std::uint64_t common = 0, all = 0;
    for (std::size_t i = lag; i < sets_.size(); ++i) {
      all += sets_[i]->size();
      for (const std::uint32_t e : *sets_[i]) common += std::ranges::count(*sets_[i - lag], e) > 0 ? 1 : 0;
    }
    return all == 0 ? 0.0 : static_cast<double>(common) / static_cast<double>(all);
  }

  /// Mean number of distinct experts of `run` tokens in a row / of one token.
  double growth(std::size_t run) {
    if (sets_.size() < run) return 0.0;
    std::uint64_t distinct = 0, single = 0;
    for (std::size_t i = 0; i + run <= sets_.size(); ++i) {
      distinct += count(i, run);
      single += sets_[i]->size();
    }
    return static_cast<double>(distinct) / static_cast<double>(single);
  }

  double touched(std::size_t run) {
    if (sets_.size() < run) return 0.0;
    return static_cast<double>(count(0, run)) / static_cast<double>(last_.size());
  }

 private:
  std::uint32_t count(std::size_t first, std::size_t run) {
    ++stamp_;
    std::uint32_t n = 0;
    for (std::size_t i = first; i < first + run; ++i)
      for (const std::uint32_t e : *sets_[i])
        if (std::exchange(last_[e], stamp_) != stamp_) ++n;
    return n;
  }

  std::vector<const std::vector<std::uint32_t>*> sets_;
  std::vector<std::uint64_t> last_;  // [experts] the count that met it last
  std::uint64_t stamp_ = 0;
};

}  // namespace

Result<TokenRoutes> read_token_routes(const std::string& path) {
  std::vector<Step> steps;
  std::vector<bool> single;
  std::map<std::tuple<std::uint32_t, bool, std::uint32_t>, std::size_t> places;
  TokenRoutes out;
  const auto take = [&](const RouteLine& r) {
    const auto [place, fresh] = places.try_emplace({r.turn, r.decode, r.step}, steps.size());
    if (fresh) {
      steps.emplace_back();
      single.push_back(true);
    }
    Step& step = steps[place->second];
    if (step.size() <= r.layer) step.resize(r.layer + 1);
    if (!add(step[r.layer], r)) single[place->second] = false;
  };
  WISP_ASSIGN(const Trace whole, read_trace(path, take));
  out.layers = whole.model.layers;
  out.experts = whole.model.experts;
  // Several tokens of which no two chose alike show only by the size of the set.
  const std::uint32_t most = whole.model.top_k;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!single[i]) continue;
    if (std::ranges::any_of(steps[i], [&](const auto& set) { return set.size() > most; })) continue;
    steps[i].resize(out.layers);
    for (auto& set : steps[i]) {
      out.top_k = std::max(out.top_k, static_cast<std::uint32_t>(set.size()));
      out.chosen.push_back(std::move(set));
    }
    ++out.tokens;
  }
  if (out.tokens == 0) return invalid(path + ": no step is a single token's");
  return out;
}

RouteStatistics statistics_of(const TokenRoutes& routes) {
  RouteStatistics s;
  for (std::uint32_t layer = 0; layer < routes.layers; ++layer) {
    LayerStatistics of_layer(routes, layer);
    for (std::size_t i = 0; i < s.overlap.size(); ++i) s.overlap[i] += of_layer.overlap(s.kLags[i]);
    for (std::size_t i = 0; i < s.growth.size(); ++i) s.growth[i] += of_layer.growth(s.kRuns[i]);
    s.touched += of_layer.touched(s.kLongRun);
  }
  const double layers = std::max(1u, routes.layers);
  for (double& x : s.overlap) x /= layers;
  for (double& x : s.growth) x /= layers;
  s.touched /= layers;
  return s;
}

}  // namespace wisp::trace
