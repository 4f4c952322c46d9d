#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/vector.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels::avx512 {
namespace {

constexpr std::uint32_t end_of_block(std::uint32_t begin, std::uint32_t end) {
  return end - begin < kBlockColumns ? end : begin + kBlockColumns;
}

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

/// Scores of `Pages` pages from position `first`; a page's 16 positions are the lanes. Several pages at once,
/// because one page is but one chain and the adder is four cycles deep.
template <class Number, std::uint32_t Pages>
void scores_of(const float* q, const std::byte* const* pages, std::uint32_t first, std::uint32_t count,
               std::uint32_t head_dim, float scale, float* scores) {
  const Number* keys[Pages];
  for (std::uint32_t p = 0; p < Pages; ++p) keys[p] = reinterpret_cast<const Number*>(pages[p]);
  __m512 sum[Pages];
  for (auto& s : sum) s = _mm512_setzero_ps();
  for (std::uint32_t b = 0; b < head_dim; b += kBlockColumns) {
    __m512 a[Pages];
    for (auto& s : a) s = _mm512_setzero_ps();
    const std::uint32_t end = end_of_block(b, head_dim);
    for (std::uint32_t d = b; d < end; ++d) {
      const __m512 qd = _mm512_set1_ps(q[d]);
      for (std::uint32_t p = 0; p < Pages; ++p)
        a[p] = _mm512_fmadd_ps(qd, load(keys[p] + std::size_t{d} * kPageTokens), a[p]);
    }
    for (std::uint32_t p = 0; p < Pages; ++p) sum[p] = b == 0 ? a[p] : _mm512_add_ps(sum[p], a[p]);
  }
  const __m512 factor = _mm512_set1_ps(scale);
  for (std::uint32_t p = 0; p < Pages; ++p)
    store_some(scores, first + p * kPageTokens, count, _mm512_mul_ps(factor, sum[p]));
}

/// out[d .. d + 16 * Vectors), cut at head_dim, over all positions.
template <class Number, std::uint32_t Vectors>
void values_of(const float* probs, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               std::uint32_t d, float* out) {
  __m512 sum[Vectors];
  for (auto& s : sum) s = _mm512_setzero_ps();
  for (std::uint32_t b = 0; b < count; b += kBlockColumns) {
    __m512 a[Vectors];
    for (auto& s : a) s = _mm512_setzero_ps();
    const std::uint32_t end = end_of_block(b, count);
    for (std::uint32_t p = b; p < end; ++p) {
      const __m512 prob = _mm512_set1_ps(probs[p]);
      const Number* page = reinterpret_cast<const Number*>(pages[p / kPageTokens]);
      const Number* value = page + std::size_t{p % kPageTokens} * head_dim + d;
      for (std::uint32_t v = 0; v < Vectors; ++v) {
        // Only the call for one vector can meet the end of the row.
        const __m512 x = Vectors == 1 ? load_first(value, head_dim - d) : load(value + v * kLanes);
        a[v] = _mm512_fmadd_ps(prob, x, a[v]);
      }
    }
    for (std::uint32_t v = 0; v < Vectors; ++v) sum[v] = b == 0 ? a[v] : _mm512_add_ps(sum[v], a[v]);
  }
  for (std::uint32_t v = 0; v < Vectors; ++v) store_some(out, d + v * kLanes, head_dim, sum[v]);
}

template <class Number>
void scores_in(const float* q, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               float scale, float* scores) {
  const std::uint32_t full = (count + kPageTokens - 1) / kPageTokens;
  std::uint32_t page = 0;
  for (; page + 8 <= full; page += 8)
    scores_of<Number, 8>(q, pages + page, page * kPageTokens, count, head_dim, scale, scores);
  for (; page + 4 <= full; page += 4)
    scores_of<Number, 4>(q, pages + page, page * kPageTokens, count, head_dim, scale, scores);
  for (; page < full; ++page)
    scores_of<Number, 1>(q, pages + page, page * kPageTokens, count, head_dim, scale, scores);
}

template <class Number>
void values_in(const float* probs, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               float* out) {
  std::uint32_t d = 0;
  for (; d + 8 * kLanes <= head_dim; d += 8 * kLanes)
    values_of<Number, 8>(probs, pages, count, head_dim, d, out);
  for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes)
    values_of<Number, 4>(probs, pages, count, head_dim, d, out);
  for (; d < head_dim; d += kLanes) values_of<Number, 1>(probs, pages, count, head_dim, d, out);
}

}  // namespace

void attention_scores(const float* q, KvFormat format, const std::byte* const* pages, std::uint32_t count,
                      std::uint32_t head_dim, float scale, float* scores) {
  if (format == KvFormat::kBf16) return scores_in<std::uint16_t>(q, pages, count, head_dim, scale, scores);
  scores_in<float>(q, pages, count, head_dim, scale, scores);
}

void attention_values(const float* probs, KvFormat format, const std::byte* const* pages, std::uint32_t count,
                      std::uint32_t head_dim, float* out) {
  if (format == KvFormat::kBf16) return values_in<std::uint16_t>(probs, pages, count, head_dim, out);
  values_in<float>(probs, pages, count, head_dim, out);
}

}  // namespace wisp::kernels::avx512
