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

/// Appends one touch for each layer, of the rows of `tokens` of a trace whose touches are one token's each;
/// in another topic: every layer's experts are renamed by `renamed(layer)`.
struct Tokens {
  explicit Tokens(const Trace& t) : from(&t) {
    for (std::size_t i = 0; i < t.touches.size(); ++i) {
      if (!t.touches[i].decode) continue;
      if (first.empty() || t.touches[i].layer <= t.touches[i - 1].layer) first.push_back(i);
    }
    first.push_back(t.touches.size());
  }
  std::size_t size() const { return first.size() - 1; }
  /// Rows [begin, end) as one step.
  void append(Trace& to, std::size_t begin, std::size_t end, bool decode,
              const std::vector<std::vector<std::uint32_t>>* renamed = nullptr) const {
    for (std::uint32_t layer = 0; layer < from->model.layers; ++layer) {
      const std::uint64_t at = to.accesses.size();
      for (std::size_t i = first[begin]; i < first[end]; ++i) {
        if (from->touches[i].layer != layer) continue;
        for (const Access& a : from->of(from->touches[i])) {
          const std::uint32_t e = renamed != nullptr ? (*renamed)[layer][a.expert] : a.expert;
          const auto same = std::find_if(to.accesses.begin() + static_cast<std::ptrdiff_t>(at),
                                         to.accesses.end(), [&](const Access& b) { return b.expert == e; });
          if (same == to.accesses.end())
            to.accesses.push_back({e, 1});
          else
            ++same->rows;
        }
      }
      const auto n = static_cast<std::uint32_t>(to.accesses.size() - at);
      if (n != 0) to.touches.push_back({layer, decode, at, n});
    }
  }
  const Trace* from;
  std::vector<std::size_t> first;  ///< touch that a token begins with, and the end
};

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
