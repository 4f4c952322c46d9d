#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/pause.hpp"

namespace wisp::compute {

/// Pauses that fit into `seconds`: one takes from 10 to 150 cycles, by the kind of core.
inline std::uint32_t pauses_in(double seconds) {
  constexpr int kPauses = 256;
  double shortest = 1.0;  // of a few: others may be interrupted
  for (int i = 0; i < 8; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int p = 0; p < kPauses; ++p) pause();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    shortest = std::min(shortest, took.count());
  }
  return static_cast<std::uint32_t>(seconds / std::max(shortest / kPauses, 1e-9));
}

}  // namespace wisp::compute
