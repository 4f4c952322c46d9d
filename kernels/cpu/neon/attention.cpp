#include "cpu/neon/neon.hpp"
#include "cpu/neon/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::neon {
namespace {

constexpr std::uint32_t end_of_block(std::uint32_t begin, std::uint32_t end) {
  return end - begin < kBlockColumns ? end : begin + kBlockColumns;
}

// Four numbers of a page, widened: f32, or bf16 (std::uint16_t).
inline float32x4_t load(const float* x) {
  return vld1q_f32(x);
}
inline float32x4_t load(const std::uint16_t* x) {
  return widen_bf16(vld1_u16(x));
}
// The first n of them, the others +0 and their memory untouched.
inline float32x4_t load_first(const float* x, std::size_t n) {
  return load_some(x, 0, n);
}
inline float32x4_t load_first(const std::uint16_t* x, std::size_t n) {
  if (n >= kLanes) return load(x);
  std::uint16_t halves[kLanes] = {};
  std::memcpy(halves, x, n * sizeof *x);
  return load(halves);
}

/// Scores of `Pages` pages from position `first`, each position a chain. Several pages at once, because one
/// page is but four vectors of chains.
template <class Number, std::uint32_t Pages>
void scores_of(const float* q, const std::byte* const* pages, std::uint32_t first, std::uint32_t count,
               std::uint32_t head_dim, float scale, float* scores) {
  const Number* keys[Pages];
  for (std::uint32_t p = 0; p < Pages; ++p) keys[p] = reinterpret_cast<const Number*>(pages[p]);
  Sixteen sum[Pages];
  for (Sixteen& of_page : sum) of_page = splat(0.0f);
  for (std::uint32_t b = 0; b < head_dim; b += kBlockColumns) {
    Sixteen a[Pages];
    for (Sixteen& of_page : a) of_page = splat(0.0f);
    const std::uint32_t end = end_of_block(b, head_dim);
    for (std::uint32_t d = b; d < end; ++d) {
      for (std::uint32_t p = 0; p < Pages; ++p) {
        const Number* key = keys[p] + std::size_t{d} * kPageTokens;
        for (std::uint32_t v = 0; v < kVectors; ++v)
          a[p].v[v] = vfmaq_n_f32(a[p].v[v], load(key + v * kLanes), q[d]);
      }
    }
    for (std::uint32_t p = 0; p < Pages; ++p) add_block(a[p], b == 0, sum[p]);
  }
  for (std::uint32_t p = 0; p < Pages; ++p) {
    for (float32x4_t& v : sum[p].v) v = vmulq_n_f32(v, scale);
    store_some(scores, first + p * kPageTokens, count, sum[p]);
  }
}

/// out[d .. d + 4 * Vectors), cut at head_dim, over all positions.
template <class Number, std::uint32_t Vectors>
void values_of(const float* probs, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               std::uint32_t d, float* out) {
  float32x4_t sum[Vectors];
  for (float32x4_t& v : sum) v = vdupq_n_f32(0.0f);
  for (std::uint32_t b = 0; b < count; b += kBlockColumns) {
    float32x4_t a[Vectors];
    for (float32x4_t& v : a) v = vdupq_n_f32(0.0f);
    const std::uint32_t end = end_of_block(b, count);
    for (std::uint32_t p = b; p < end; ++p) {
      const Number* page = reinterpret_cast<const Number*>(pages[p / kPageTokens]);
      const Number* value = page + std::size_t{p % kPageTokens} * head_dim + d;
      for (std::uint32_t v = 0; v < Vectors; ++v) {
        // Only the call for one vector can meet the end of the row.
        const float32x4_t x = Vectors == 1 ? load_first(value, head_dim - d) : load(value + v * kLanes);
        a[v] = vfmaq_n_f32(a[v], x, probs[p]);
      }
    }
    for (std::uint32_t v = 0; v < Vectors; ++v) sum[v] = b == 0 ? a[v] : vaddq_f32(sum[v], a[v]);
  }
  for (std::uint32_t v = 0; v < Vectors; ++v) store_some(out, d + v * kLanes, head_dim, sum[v]);
}

template <class Number>
void scores_in(const float* q, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               float scale, float* scores) {
  const std::uint32_t full = (count + kPageTokens - 1) / kPageTokens;
  std::uint32_t page = 0;
  for (; page + 4 <= full; page += 4) {
    scores_of<Number, 4>(q, pages + page, page * kPageTokens, count, head_dim, scale, scores);
  }
  for (; page < full; ++page) {
    scores_of<Number, 1>(q, pages + page, page * kPageTokens, count, head_dim, scale, scores);
  }
}

template <class Number>
void values_in(const float* probs, const std::byte* const* pages, std::uint32_t count, std::uint32_t head_dim,
               float* out) {
  constexpr std::uint32_t kWide = 8 * kLanes;
  std::uint32_t d = 0;
  for (; d + kWide <= head_dim; d += kWide) values_of<Number, 8>(probs, pages, count, head_dim, d, out);
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

}  // namespace wisp::kernels::neon
