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

/// One query. `Number`: how a page holds its numbers.
template <class Number>
void scores_of(const KvRows& keys, const float* q, float scale, float* scores) {
  for (std::uint32_t p = 0; p < keys.count; ++p) {
    const Number* key = reinterpret_cast<const Number*>(keys.pages[p / kPageTokens]) + p % kPageTokens;
    float sum = 0.0f;
    for (std::uint32_t b = 0; b < keys.width; b += kBlockColumns) {
      float a = 0.0f;
      const std::uint32_t end = std::min(b + kBlockColumns, keys.width);
      for (std::uint32_t d = b; d < end; ++d)
        a = std::fma(q[d], widened(key[std::size_t{d} * kPageTokens]), a);
      sum = b == 0 ? a : sum + a;
    }
    scores[p] = scale * sum;
  }
}

template <class Number>
void values_of(const KvRows& values, const float* probs, std::uint32_t count, float* out) {
  for (std::uint32_t d = 0; d < values.width; ++d) {
    float sum = 0.0f;
    for (std::uint32_t b = 0; b < count; b += kBlockColumns) {
      float a = 0.0f;
      const std::uint32_t end = std::min(b + kBlockColumns, count);
      for (std::uint32_t p = b; p < end; ++p) {
        const Number* page = reinterpret_cast<const Number*>(values.pages[p / kPageTokens]);
        a = std::fma(probs[p], widened(page[std::size_t{p % kPageTokens} * values.width + d]), a);
      }
      sum = b == 0 ? a : sum + a;
    }
    out[d] = sum;
  }
}

}  // namespace

void attention_scores(const KvRows& keys, const float* q, std::size_t q_stride, std::uint32_t n, float scale,
                      float* scores, std::size_t stride) {
  for (std::size_t i = 0; i < n; ++i) {
    if (keys.format == KvFormat::kBf16)
      scores_of<std::uint16_t>(keys, q + i * q_stride, scale, scores + i * stride);
    else
      scores_of<float>(keys, q + i * q_stride, scale, scores + i * stride);
  }
}

void attention_values(const KvRows& values, const float* probs, std::size_t stride,
                      const std::uint32_t* counts, std::uint32_t n, float* out, std::size_t out_stride) {
  for (std::size_t i = 0; i < n; ++i) {
    if (values.format == KvFormat::kBf16)
      values_of<std::uint16_t>(values, probs + i * stride, counts[i], out + i * out_stride);
    else
      values_of<float>(values, probs + i * stride, counts[i], out + i * out_stride);
  }
}

}  // namespace wisp::kernels::ref
