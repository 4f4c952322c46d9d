#include <algorithm>
#include <cmath>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels::ref {

void attention_scores(const float* q, const float* const* pages, std::uint32_t count, std::uint32_t head_dim,
                      float scale, float* scores) {
  for (std::uint32_t p = 0; p < count; ++p) {
    const float* key = pages[p / kPageTokens] + p % kPageTokens;
    float sum = 0.0f;
    for (std::uint32_t b = 0; b < head_dim; b += kBlockColumns) {
      float a = 0.0f;
      const std::uint32_t end = std::min(b + kBlockColumns, head_dim);
      for (std::uint32_t d = b; d < end; ++d) a = std::fma(q[d], key[std::size_t{d} * kPageTokens], a);
      sum = b == 0 ? a : sum + a;
    }
    scores[p] = scale * sum;
  }
}

void attention_values(const float* probs, const float* const* pages, std::uint32_t count,
                      std::uint32_t head_dim, float* out) {
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    float sum = 0.0f;
    for (std::uint32_t b = 0; b < count; b += kBlockColumns) {
      float a = 0.0f;
      const std::uint32_t end = std::min(b + kBlockColumns, count);
      for (std::uint32_t p = b; p < end; ++p) {
        const float* value = pages[p / kPageTokens] + std::size_t{p % kPageTokens} * head_dim;
        a = std::fma(probs[p], value[d], a);
      }
      sum = b == 0 ? a : sum + a;
    }
    out[d] = sum;
  }
}

}  // namespace wisp::kernels::ref
