#include "cpu/attention_walk.hpp"
#include "cpu/neon/neon.hpp"
#include "cpu/neon/vector.hpp"

namespace wisp::kernels::neon {
namespace {

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

/// The part of out[d .. d + 4 * Vectors), cut at the width, that positions [begin, end) of one block give.
template <class Number, std::uint32_t Vectors>
void values_of(const float* probs, const KvRows& values, std::uint32_t begin, std::uint32_t end,
               std::uint32_t d, float* out) {
  float32x4_t a[Vectors];
  for (float32x4_t& v : a) v = vdupq_n_f32(0.0f);
  for (std::uint32_t p = begin; p < end; ++p) {
    const Number* page = reinterpret_cast<const Number*>(values.pages[p / kPageTokens]);
    const Number* value = page + std::size_t{p % kPageTokens} * values.width + d;
    for (std::uint32_t v = 0; v < Vectors; ++v) {
      // Only the call for one vector can meet the end of the row.
      const float32x4_t x = Vectors == 1 ? load_first(value, values.width - d) : load(value + v * kLanes);
      a[v] = vfmaq_n_f32(a[v], x, probs[p]);
    }
  }
  for (std::uint32_t v = 0; v < Vectors; ++v) {
    const std::size_t at = d + v * kLanes;
    store_some(out, at, values.width, begin == 0 ? a[v] : vaddq_f32(load_some(out, at, values.width), a[v]));
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

}  // namespace wisp::kernels::neon
