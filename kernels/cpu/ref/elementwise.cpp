#include <cmath>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels::ref {

void silu_mul(float* gate, const float* up, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) gate[i] = canonical_silu(gate[i]) * up[i];
}

void accumulate(float w, const float* y, float* acc, std::size_t n, bool first) {
  for (std::size_t i = 0; i < n; ++i) acc[i] = first ? w * y[i] : std::fma(w, y[i], acc[i]);
}

void add(float* x, const float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
}

}  // namespace wisp::kernels::ref
