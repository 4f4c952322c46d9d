#pragma once
#include <cstdint>

#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::ref {

/// The tree of a reduction: lane l takes l + 8, then + 4, + 2, + 1. Overwrites `lanes`.
inline float sum_lanes(float (&lanes)[kSumLanes]) {
  for (std::uint32_t step = kSumLanes / 2; step > 0; step /= 2) {
    for (std::uint32_t l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  }
  return lanes[0];
}

}  // namespace wisp::kernels::ref
