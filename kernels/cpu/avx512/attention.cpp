#include "cpu/attention_walk.hpp"
#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/vector.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels::avx512 {
namespace {

// The first n of 16 numbers of a page, widened: f32, or bf16 (std::uint16_t); the others +0 and their memory
// untouched.
inline __m512 load_first(const float* x, std::size_t n) {
  return load_some(x, 0, n);
}
inline __m512 load_first(const std::uint16_t* x, std::size_t n) {
  const __m256i halves = _mm256_maskz_loadu_epi16(lanes_below(0, n), x);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
template <class Number>
inline __m512 load(const Number* x) {
  return load_first(x, kLanes);
}

/// Scores of `Queries` queries at `Pages` pages from page `first`; a page's 16 positions are the lanes. It
/// takes some eight chains to hide the depth of the adder, and a key that is loaded once serves all queries.
template <class Number, std::uint32_t Queries, std::uint32_t Pages>
void scores_of(const KvRows& keys, std::uint32_t first, const float* q, std::size_t q_stride, float scale,
               float* scores, std::size_t stride) {
  const Number* page[Pages];
  for (std::uint32_t p = 0; p < Pages; ++p) page[p] = reinterpret_cast<const Number*>(keys.pages[first + p]);
  __m512 sum[Queries][Pages];
  for (std::uint32_t b = 0; b == 0 || b < keys.width; b += kBlockColumns) {
    __m512 a[Queries][Pages];
    for (auto& of_query : a)
      for (auto& s : of_query) s = _mm512_setzero_ps();
    const std::uint32_t end = end_of_block(b, keys.width);
    for (std::uint32_t d = b; d < end; ++d) {
      __m512 key[Pages];
      for (std::uint32_t p = 0; p < Pages; ++p) key[p] = load(page[p] + std::size_t{d} * kPageTokens);
      for (std::uint32_t i = 0; i < Queries; ++i) {
        const __m512 qd = _mm512_set1_ps(q[i * q_stride + d]);
        for (std::uint32_t p = 0; p < Pages; ++p) a[i][p] = _mm512_fmadd_ps(qd, key[p], a[i][p]);
      }
    }
    for (std::uint32_t i = 0; i < Queries; ++i)
      for (std::uint32_t p = 0; p < Pages; ++p)
        sum[i][p] = b == 0 ? a[i][p] : _mm512_add_ps(sum[i][p], a[i][p]);
  }
  const __m512 factor = _mm512_set1_ps(scale);
  for (std::uint32_t i = 0; i < Queries; ++i)
    for (std::uint32_t p = 0; p < Pages; ++p)
      store_some(scores + i * stride, (first + p) * kPageTokens, keys.count,
                 _mm512_mul_ps(factor, sum[i][p]));
}

/// The part of out[d .. d + 16 * Vectors), cut at the width, that positions [begin, end) of one block give to
/// `Queries` queries; each sees the positions below its count.
template <class Number, std::uint32_t Queries, std::uint32_t Vectors>
void values_of(const KvRows& values, std::uint32_t begin, std::uint32_t end, std::uint32_t d,
               const float* probs, std::size_t stride, const std::uint32_t* counts, float* out,
               std::size_t out_stride) {
  __m512 a[Queries][Vectors];
  for (auto& of_query : a)
    for (auto& s : of_query) s = _mm512_setzero_ps();
  const auto load_values = [&](std::uint32_t p, __m512(&x)[Vectors]) __attribute__((always_inline)) {
    const Number* page = reinterpret_cast<const Number*>(values.pages[p / kPageTokens]);
    const Number* value = page + std::size_t{p % kPageTokens} * values.width + d;
    for (std::uint32_t v = 0; v < Vectors; ++v)  // only the call for one vector can meet the end of the row
      x[v] = Vectors == 1 ? load_first(value, values.width - d) : load(value + v * kLanes);
  };
  std::uint32_t least = end;  // all queries see the positions below
  for (std::uint32_t i = 0; i < Queries; ++i) least = counts[i] < least ? counts[i] : least;
  std::uint32_t p = begin;
  for (; p < least; ++p) {
    __m512 x[Vectors];
    load_values(p, x);
    for (std::uint32_t i = 0; i < Queries; ++i) {
      const __m512 prob = _mm512_set1_ps(probs[i * stride + p]);
      for (std::uint32_t v = 0; v < Vectors; ++v) a[i][v] = _mm512_fmadd_ps(prob, x[v], a[i][v]);
    }
  }
  if (Queries > 1) {
    for (; p < end; ++p) {
      __m512 x[Vectors];
      load_values(p, x);
#pragma GCC unroll 4
      for (std::uint32_t i = 0; i < Queries; ++i) {
        if (p >= counts[i]) continue;
        const __m512 prob = _mm512_set1_ps(probs[i * stride + p]);
        for (std::uint32_t v = 0; v < Vectors; ++v) a[i][v] = _mm512_fmadd_ps(prob, x[v], a[i][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (std::uint32_t i = 0; i < Queries; ++i) {
    if (begin != 0 && begin >= counts[i]) continue;
    float* own = out + i * out_stride;
    for (std::uint32_t v = 0; v < Vectors; ++v) {
      const std::size_t at = d + v * kLanes;
      store_some(own, at, values.width,
                 begin == 0 ? a[i][v] : _mm512_add_ps(load_some(own, at, values.width), a[i][v]));
    }
  }
}

/// Calls pass<N>(i) for queries i .. i + N of each pass, N in {1, 2, 4}.
template <class Pass>
void for_queries(std::uint32_t n, const Pass& pass) {
  std::uint32_t i = 0;
  for (; i + 4 <= n; i += 4) pass.template operator()<4>(i);
  if (i + 2 <= n) {
    pass.template operator()<2>(i);
    i += 2;
  }
  if (i < n) pass.template operator()<1>(i);
}

// In both, a piece of the pages stays in a near cache while the queries pass over it.

template <class Number>
void scores_in(const KvRows& keys, const float* q, std::size_t q_stride, std::uint32_t n, float scale,
               float* scores, std::size_t stride) {
  const std::uint32_t pages = (keys.count + kPageTokens - 1) / kPageTokens;
  const auto pass = [&]<std::uint32_t Pages>(std::uint32_t page) {
    for_queries(n, [&]<std::uint32_t N>(std::uint32_t i) {
      if constexpr (N == 1 || Pages <= 4)
        scores_of<Number, N, Pages>(keys, page, q + i * q_stride, q_stride, scale, scores + i * stride,
                                    stride);
    });
  };
  std::uint32_t page = 0;
  if (n == 1)
    for (; page + 8 <= pages; page += 8) pass.template operator()<8>(page);
  for (; page + 4 <= pages; page += 4) pass.template operator()<4>(page);
  for (; page < pages; ++page) pass.template operator()<1>(page);
}

template <class Number>
void values_in(const KvRows& values, const float* probs, std::size_t stride, const std::uint32_t* counts,
               std::uint32_t n, float* out, std::size_t out_stride) {
  std::uint32_t begin = 0;
  do {
    const std::uint32_t end = end_of_block(begin, values.count);
    const auto pass = [&]<std::uint32_t Vectors>(std::uint32_t d) {
      for_queries(n, [&]<std::uint32_t N>(std::uint32_t i) {
        if constexpr (N == 1 || Vectors <= 4)
          values_of<Number, N, Vectors>(values, begin, end, d, probs + i * stride, stride, counts + i,
                                        out + i * out_stride, out_stride);
      });
    };
    std::uint32_t d = 0;
    if (n == 1)
      for (; d + 8 * kLanes <= values.width; d += 8 * kLanes) pass.template operator()<8>(d);
    for (; d + 4 * kLanes <= values.width; d += 4 * kLanes) pass.template operator()<4>(d);
    for (; d < values.width; d += kLanes) pass.template operator()<1>(d);
    begin = end;
  } while (begin < values.count);
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

}  // namespace wisp::kernels::avx512
