#include <cstring>

#include "cpu/attention_walk.hpp"
#include "cpu/avx2/avx2.hpp"
#include "cpu/avx2/vector.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels::avx2 {
namespace {

// Eight numbers of a page, widened: f32, or bf16 (std::uint16_t).
inline __m256 load(const float* x) {
  return _mm256_loadu_ps(x);
}
inline __m256 widen_bf16(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline __m256 load(const std::uint16_t* x) {
  return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
// The first n of them, the others +0 and their memory untouched.
inline __m256 load_first(const float* x, std::size_t n) {
  return load_some(x, 0, n);
}
inline __m256 load_first(const std::uint16_t* x, std::size_t n) {
  if (n >= kLanes) return load(x);
  alignas(16) std::uint16_t halves[kLanes] = {};
  std::memcpy(halves, x, n * sizeof *x);
  return widen_bf16(_mm_load_si128(reinterpret_cast<const __m128i*>(halves)));
}

/// Scores of `Pages` pages from position `first`; a page's 16 positions are the lanes of two vectors. Several
/// pages at once, because one page is but two chains and the adder is four cycles deep.
template <class Number, std::uint32_t Pages>
void scores_of(const float* q, const std::byte* const* pages, std::uint32_t first, std::uint32_t count,
               std::uint32_t head_dim, float scale, float* scores) {
  const Number* keys[Pages];
  for (std::uint32_t p = 0; p < Pages; ++p) keys[p] = reinterpret_cast<const Number*>(pages[p]);
  __m256 sum[Pages][2];
  for (std::uint32_t p = 0; p < Pages; ++p) sum[p][0] = sum[p][1] = _mm256_setzero_ps();
  for (std::uint32_t b = 0; b < head_dim; b += kBlockColumns) {
    __m256 a[Pages][2];
    for (std::uint32_t p = 0; p < Pages; ++p) a[p][0] = a[p][1] = _mm256_setzero_ps();
    const std::uint32_t end = end_of_block(b, head_dim);
    for (std::uint32_t d = b; d < end; ++d) {
      const __m256 qd = _mm256_broadcast_ss(q + d);
      for (std::uint32_t p = 0; p < Pages; ++p) {
        const Number* key = keys[p] + std::size_t{d} * kPageTokens;
        a[p][0] = _mm256_fmadd_ps(qd, load(key), a[p][0]);
        a[p][1] = _mm256_fmadd_ps(qd, load(key + kLanes), a[p][1]);
      }
    }
    for (std::uint32_t p = 0; p < Pages; ++p) {
      for (std::uint32_t h = 0; h < 2; ++h) sum[p][h] = b == 0 ? a[p][h] : _mm256_add_ps(sum[p][h], a[p][h]);
    }
  }
  const __m256 factor = _mm256_set1_ps(scale);
  for (std::uint32_t p = 0; p < Pages; ++p) {
    for (std::uint32_t h = 0; h < 2; ++h) {
      store_some(scores, first + p * kPageTokens + h * kLanes, count, _mm256_mul_ps(factor, sum[p][h]));
    }
  }
}

/// The part of out[d .. d + 8 * Vectors), cut at the width, that positions [begin, end) of one block give.
template <class Number, std::uint32_t Vectors>
void values_of(const float* probs, const KvRows& values, std::uint32_t begin, std::uint32_t end,
               std::uint32_t d, float* out) {
  __m256 a[Vectors];
  for (std::uint32_t v = 0; v < Vectors; ++v) a[v] = _mm256_setzero_ps();
  for (std::uint32_t p = begin; p < end; ++p) {
    const __m256 prob = _mm256_broadcast_ss(probs + p);
    const Number* page = reinterpret_cast<const Number*>(values.pages[p / kPageTokens]);
    const Number* value = page + std::size_t{p % kPageTokens} * values.width + d;
    for (std::uint32_t v = 0; v < Vectors; ++v) {
      // Only the call for one vector can meet the end of the row.
      const __m256 x = Vectors == 1 ? load_first(value, values.width - d) : load(value + v * kLanes);
      a[v] = _mm256_fmadd_ps(prob, x, a[v]);
    }
  }
  for (std::uint32_t v = 0; v < Vectors; ++v) {
    const std::size_t at = d + v * kLanes;
    store_some(out, at, values.width,
               begin == 0 ? a[v] : _mm256_add_ps(load_some(out, at, values.width), a[v]));
  }
}

template <class Number>
void scores_in(const KvRows& keys, const float* q, std::size_t q_stride, std::uint32_t n, float scale,
               float* scores, std::size_t stride) {
  walk_scores(keys, n, [&]<std::uint32_t Pages>(std::size_t i, std::uint32_t page) {
    scores_of<Number, Pages>(q + i * q_stride, keys.pages + page, page * kPageTokens, keys.count, keys.width,
                             scale, scores + i * stride);
  });
}

template <class Number>
void values_in(const KvRows& values, const float* probs, std::size_t stride, const std::uint32_t* counts,
               std::uint32_t n, float* out, std::size_t out_stride) {
  const auto mix = [&]<std::uint32_t Vectors>(std::size_t i, std::uint32_t begin, std::uint32_t end,
                                              std::uint32_t d) {
    values_of<Number, Vectors>(probs + i * stride, values, begin, end, d, out + i * out_stride);
  };
  walk_values(values, counts, n, kLanes, mix);
}

}  // namespace

void attention_scores(const KvRows& keys, const float* q, std::size_t q_stride, std::uint32_t n, float scale,
                      float* scores, std::size_t stride) {
  if (keys.format == KvFormat::kBf16)
    return scores_in<std::uint16_t>(keys, q, q_stride, n, scale, scores, stride);
  scores_in<float>(keys, q, q_stride, n, scale, scores, stride);
}

void attention_values(const KvRows& values, const float* probs, std::size_t stride,
                      const std::uint32_t* counts, std::uint32_t n, float* out, std::size_t out_stride) {
  if (values.format == KvFormat::kBf16)
    return values_in<std::uint16_t>(values, probs, stride, counts, n, out, out_stride);
  values_in<float>(values, probs, stride, counts, n, out, out_stride);
}

}  // namespace wisp::kernels::avx2
