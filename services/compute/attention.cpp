#include <algorithm>
#include <cmath>
#include <limits>

#include "service/crash_point.hpp"
#include "services/compute/forward.hpp"

namespace wisp::compute {

std::byte* Forward::key_page(std::uint32_t page, std::uint32_t layer, std::uint32_t kv_head) const {
  const model::AttentionSpec& a = spec_.attention;
  const std::uint64_t plane = std::uint64_t{a.head_dim} * kernels::kPageTokens;
  return kv_.number(page, (std::uint64_t{layer} * 2 * a.kv_heads + kv_head) * plane);
}

std::byte* Forward::value_page(std::uint32_t page, std::uint32_t layer, std::uint32_t kv_head) const {
  const model::AttentionSpec& a = spec_.attention;
  return key_page(page, layer, a.kv_heads + kv_head);
}

void Forward::attention(std::uint32_t layer, std::span<const Sequence> sequences) {
  const LayerWeights& w = weights_.layers[layer];
  const model::AttentionSpec& a = spec_.attention;
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  products(normed_.data(), {{w.q, q_.data()}, {w.k, k_rows_.data()}, {w.v, v_rows_.data()}}, rows);
  if (a.qk_norm == model::QkNorm::kWhole) {
    const std::uint32_t q = a.heads * a.head_dim, k = a.kv_heads * a.head_dim;
    for_rows(rows, q + k, [&](std::size_t r) {
      k_.rms_norm(q_.data() + r * q, w.q_norm.data(), spec_.norm_eps, q, q_.data() + r * q);
      k_.rms_norm(k_rows_.data() + r * k, w.k_norm.data(), spec_.norm_eps, k, k_rows_.data() + r * k);
    });
  }
  // Where each row sees no other row of this call, attend() does it on its way.
  if (!decode_) {
    const std::uint64_t cost = std::uint64_t{rows} * (a.heads + 2 * a.kv_heads) * a.head_dim * 4;
    pool_.run(rows * a.kv_heads, cost, [&](std::uint32_t item, std::uint32_t) {
      finish_heads(layer, item / a.kv_heads, item % a.kv_heads, sequences);
    });
  }
  attend(layer, sequences);
  products(attn_.data(), {{w.o, block_.data(), x_.data()}}, rows);
}

void Forward::clip(float* x, std::size_t n) const {
  const float limit = spec_.attention.clip;
  if (limit == 0.0f) return;
  for (std::size_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -limit, limit);
}

void Forward::finish_heads(std::uint32_t layer, std::size_t r, std::uint32_t kv_head,
                           std::span<const Sequence> sequences) {
  const LayerWeights& w = weights_.layers[layer];
  const model::AttentionSpec& a = spec_.attention;
  const Row row = rows_[r];
  const auto norm_and_rotate = [&](float* head, const std::vector<float>& norm) {
    clip(head, a.head_dim);
    if (a.qk_norm == model::QkNorm::kHead) k_.rms_norm(head, norm.data(), spec_.norm_eps, a.head_dim, head);
    kernels::apply_rope(head, rope_.table(), row.position, a.rope.interleaved);
  };
  const std::uint32_t per_kv = a.heads / a.kv_heads;
  for (std::uint32_t i = 0; i < per_kv; ++i)
    norm_and_rotate(q_.data() + (r * a.heads + kv_head * per_kv + i) * a.head_dim, w.q_norm);
  float* const key = k_rows_.data() + (r * a.kv_heads + kv_head) * a.head_dim;
  float* const value = v_rows_.data() + (r * a.kv_heads + kv_head) * a.head_dim;
  norm_and_rotate(key, w.k_norm);
  clip(value, a.head_dim);
  const std::uint32_t page = sequences[row.sequence].pages[row.position / kernels::kPageTokens];
  const std::uint32_t at = row.position % kernels::kPageTokens;
  const std::size_t size = kernels::kv_bytes(kv_.format);
  kernels::store_kv(kv_.format, key_page(page, layer, kv_head) + at * size, kernels::kPageTokens, key,
                    a.head_dim);
  service::crash_point(service::CrashPoint::kKvRowHalf);
  kernels::store_kv(kv_.format, value_page(page, layer, kv_head) + at * size * a.head_dim, 1, value,
                    a.head_dim);
}

void Forward::attend(std::uint32_t layer, std::span<const Sequence> sequences) {
  const model::AttentionSpec& a = spec_.attention;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
  const std::uint32_t per_kv = a.heads / a.kv_heads;
  std::uint64_t cost = 0;
  const std::uint32_t window = spec_.layers[layer].window;
  // The first position that a row sees.
  const auto first_of = [window](std::uint32_t position) {
    return window != 0 && position >= window ? position - window + 1 : 0;
  };
  for (const Row& row : rows_)
    cost += std::uint64_t{row.position + 1 - first_of(row.position)} * a.heads * a.head_dim * 2;
  if (decode_) cost += rows_.size() * (a.heads + 2 * a.kv_heads) * a.head_dim * 4;
  const auto items = static_cast<std::uint32_t>(rows_.size()) * a.kv_heads;
  // An item is one row and one KV head: its query heads read the same pages.
  pool_.run(items, cost, [&](std::uint32_t item, std::uint32_t thread) {
    AttentionScratch& own = attention_[thread];
    const std::size_t r = item / a.kv_heads;
    const std::uint32_t kv_head = item % a.kv_heads;
    if (decode_) finish_heads(layer, r, kv_head, sequences);
    // Positions are counted from the first page that the row sees; those in it that it does not see get
    // probability 0.
    const std::uint32_t first = first_of(rows_[r].position), first_page = first / kernels::kPageTokens;
    const std::uint32_t unseen = first % kernels::kPageTokens;
    const std::uint32_t count = rows_[r].position + 1 - first_page * kernels::kPageTokens;
    const Sequence& s = sequences[rows_[r].sequence];
    for (std::uint32_t p = 0; p * kernels::kPageTokens < count; ++p) {
      own.keys[p] = key_page(s.pages[first_page + p], layer, kv_head);
      own.values[p] = value_page(s.pages[first_page + p], layer, kv_head);
    }
    const std::vector<float>& sinks = weights_.layers[layer].sinks;
    float* const scores = own.scores.data();
    for (std::uint32_t i = 0; i < per_kv; ++i) {
      const std::size_t head = (r * a.heads + kv_head * per_kv + i) * a.head_dim;
      k_.attention_scores(q_.data() + head, kv_.format, own.keys.data(), count, a.head_dim, scale, scores);
      std::fill_n(scores, unseen, -std::numeric_limits<float>::infinity());
      // A sink stands behind the last position; its probability is dropped.
      if (!sinks.empty()) scores[count] = sinks[kv_head * per_kv + i];
      k_.softmax(scores, sinks.empty() ? count : count + 1);
      k_.attention_values(scores, kv_.format, own.values.data(), count, a.head_dim, attn_.data() + head);
    }
  });
}

}  // namespace wisp::compute
