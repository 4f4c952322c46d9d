#include "cpu/avx2/avx2.hpp"
#include "cpu/avx2/vector.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels::avx2 {
namespace {

constexpr std::uint32_t end_of_block(std::uint32_t begin, std::uint32_t end) {
  return end - begin < kBlockColumns ? end : begin + kBlockColumns;
}

/// Scores of `Pages` pages from position `first`; a page's 16 positions are the lanes of two vectors. Several
/// pages at once, because one page is but two chains and the adder is four cycles deep.
template <std::uint32_t Pages>
void scores_of(const float* q, const float* const* pages, std::uint32_t first, std::uint32_t count,
               std::uint32_t head_dim, float scale, float* scores) {
  __m256 sum[Pages][2];
  for (std::uint32_t p = 0; p < Pages; ++p) sum[p][0] = sum[p][1] = _mm256_setzero_ps();
  for (std::uint32_t b = 0; b < head_dim; b += kBlockColumns) {
    __m256 a[Pages][2];
    for (std::uint32_t p = 0; p < Pages; ++p) a[p][0] = a[p][1] = _mm256_setzero_ps();
    const std::uint32_t end = end_of_block(b, head_dim);
    for (std::uint32_t d = b; d < end; ++d) {
      const __m256 qd = _mm256_broadcast_ss(q + d);
      for (std::uint32_t p = 0; p < Pages; ++p) {
        const float* key = pages[p] + std::size_t{d} * kPageTokens;
        a[p][0] = _mm256_fmadd_ps(qd, _mm256_loadu_ps(key), a[p][0]);
        a[p][1] = _mm256_fmadd_ps(qd, _mm256_loadu_ps(key + kLanes), a[p][1]);
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

/// out[d .. d + 8 * Vectors), cut at head_dim, over all positions.
template <std::uint32_t Vectors>
void values_of(const float* probs, const float* const* pages, std::uint32_t count, std::uint32_t head_dim,
               std::uint32_t d, float* out) {
  __m256 sum[Vectors];
  for (std::uint32_t v = 0; v < Vectors; ++v) sum[v] = _mm256_setzero_ps();
  for (std::uint32_t b = 0; b < count; b += kBlockColumns) {
    __m256 a[Vectors];
    for (std::uint32_t v = 0; v < Vectors; ++v) a[v] = _mm256_setzero_ps();
    const std::uint32_t end = end_of_block(b, count);
    for (std::uint32_t p = b; p < end; ++p) {
      const __m256 prob = _mm256_broadcast_ss(probs + p);
      const float* value = pages[p / kPageTokens] + std::size_t{p % kPageTokens} * head_dim + d;
      for (std::uint32_t v = 0; v < Vectors; ++v) {
        // Only the call for one vector can meet the end of the row.
        const __m256 x =
            Vectors == 1 ? load_some(value, 0, head_dim - d) : _mm256_loadu_ps(value + v * kLanes);
        a[v] = _mm256_fmadd_ps(prob, x, a[v]);
      }
    }
    for (std::uint32_t v = 0; v < Vectors; ++v) sum[v] = b == 0 ? a[v] : _mm256_add_ps(sum[v], a[v]);
  }
  for (std::uint32_t v = 0; v < Vectors; ++v) store_some(out, d + v * kLanes, head_dim, sum[v]);
}

}  // namespace

void attention_scores(const float* q, const float* const* pages, std::uint32_t count, std::uint32_t head_dim,
                      float scale, float* scores) {
  const std::uint32_t full = (count + kPageTokens - 1) / kPageTokens;
  std::uint32_t page = 0;
  for (; page + 4 <= full; page += 4) {
    scores_of<4>(q, pages + page, page * kPageTokens, count, head_dim, scale, scores);
  }
  for (; page < full; ++page) {
    scores_of<1>(q, pages + page, page * kPageTokens, count, head_dim, scale, scores);
  }
}

void attention_values(const float* probs, const float* const* pages, std::uint32_t count,
                      std::uint32_t head_dim, float* out) {
  constexpr std::uint32_t kWide = 8 * kLanes;
  std::uint32_t d = 0;
  for (; d + kWide <= head_dim; d += kWide) values_of<8>(probs, pages, count, head_dim, d, out);
  for (; d < head_dim; d += kLanes) values_of<1>(probs, pages, count, head_dim, d, out);
}

}  // namespace wisp::kernels::avx2
