#include "cpu/ref/lanes.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels {

float canonical_sum(const float* x, std::size_t n) {
  float lanes[kSumLanes] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % kSumLanes] += x[i];
  return ref::sum_lanes(lanes);
}

}  // namespace wisp::kernels
