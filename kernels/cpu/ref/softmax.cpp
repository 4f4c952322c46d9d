#include <limits>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels::ref {

void softmax(float* x, std::uint32_t n) {
  // The comparison passes over NaN; exp then carries it into every quotient by way of the sum.
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::uint32_t i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  for (std::uint32_t i = 0; i < n; ++i) x[i] = canonical_exp(x[i] - maximum);
  const float sum = canonical_sum(x, n);
  for (std::uint32_t i = 0; i < n; ++i) x[i] = x[i] / sum;
}

}  // namespace wisp::kernels::ref
