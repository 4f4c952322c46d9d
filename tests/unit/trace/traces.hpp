#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "trace/route_trace.hpp"

namespace wisp::trace {

/// Appends a touch of `layer` with these experts.
inline void append(Trace& t, std::uint32_t layer, const std::vector<std::uint32_t>& experts) {
  t.touches.push_back({layer, true, t.accesses.size(), static_cast<std::uint32_t>(experts.size())});
  for (const std::uint32_t e : experts) t.accesses.push_back({e, 1});
}

/// `tokens` passes over all layers; each touch draws `top_k` distinct experts with `weight(token, layer,
/// expert)`.
template <class Weight>
Trace drawn_trace(const TraceModel& m, std::uint32_t tokens, std::uint32_t seed, const Weight& weight) {
  std::mt19937 random(seed);
  Trace t;
  t.model = m;
  std::vector<double> w(m.experts);
  for (std::uint32_t token = 0; token < tokens; ++token)
    for (std::uint32_t layer = 0; layer < m.layers; ++layer) {
      for (std::uint32_t e = 0; e < m.experts; ++e) w[e] = weight(token, layer, e);
      std::vector<std::uint32_t> experts;
      while (experts.size() < m.top_k) {
        double at = std::uniform_real_distribution<double>(0, 1)(random);
        double sum = 0;
        for (const double x : w) sum += x;
        at *= sum;
        std::uint32_t e = 0;
        while (e + 1 < m.experts && (at >= w[e] || w[e] == 0)) at -= w[e++];
        if (w[e] == 0) continue;
        w[e] = 0;
        experts.push_back(e);
      }
      append(t, layer, experts);
    }
  return t;
}

}  // namespace wisp::trace
