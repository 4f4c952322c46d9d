#include <algorithm>
#include <cmath>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/kernels.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::kernels::ref {
namespace {

float widened(float x) {
  return x;
}
float widened(std::uint16_t x) {
  return bf16_to_float(x);
}

/// `Number`: how a page holds its numbers.
template <class Number>
void scores_of(const float* q, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               float scale, float* scores) {
  for (std::uint32_t p = 0; p < count; ++p) {
    const Number* key = reinterpret_cast<const Number*>(pages[p / kPageTokens]) + p % kPageTokens;
    float sum = 0.0f;
    for (std::uint32_t b = 0; b < head_dim; b += kBlockColumns) {
      float a = 0.0f;
      const std::uint32_t end = std::min(b + kBlockColumns, head_dim);
      for (std::uint32_t d = b; d < end; ++d)
        a = std::fma(q[d], widened(key[std::size_t{d} * kPageTokens]), a);
      sum = b == 0 ? a : sum + a;
    }
    scores[p] = scale * sum;
  }
}

template <class Number>
void values_of(const float* probs, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               float* out) {
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    float sum = 0.0f;
    for (std::uint32_t b = 0; b < count; b += kBlockColumns) {
      float a = 0.0f;
      const std::uint32_t end = std::min(b + kBlockColumns, count);
      for (std::uint32_t p = b; p < end; ++p) {
        const Number* page = reinterpret_cast<const Number*>(pages[p / kPageTokens]);
        a = std::fma(probs[p], widened(page[std::size_t{p % kPageTokens} * head_dim + d]), a);
      }
      sum = b == 0 ? a : sum + a;
    }
    out[d] = sum;
  }
}

}  // namespace

void attention_scores(const float* q, KvFormat format, const std::byte* const* pages, std::uint32_t count,
                      std::uint32_t head_dim, float scale, float* scores) {
  if (format == KvFormat::kBf16) return scores_of<std::uint16_t>(q, pages, count, head_dim, scale, scores);
  scores_of<float>(q, pages, count, head_dim, scale, scores);
}

void attention_values(const float* probs, KvFormat format, const std::byte* const* pages, std::uint32_t count,
                      std::uint32_t head_dim, float* out) {
  if (format == KvFormat::kBf16) return values_of<std::uint16_t>(probs, pages, count, head_dim, out);
  values_of<float>(probs, pages, count, head_dim, out);
}

}  // namespace wisp::kernels::ref
