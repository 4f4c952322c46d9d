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
  linear(w.q, normed_.data(), q_.data(), rows);
  linear(w.k, normed_.data(), k_rows_.data(), rows);
  linear(w.v, normed_.data(), v_rows_.data(), rows);
  const auto norm_and_rotate = [&](float* x, std::uint32_t heads, const std::vector<float>& norm,
                                   std::uint32_t pos) {
    const std::uint32_t width = heads * a.head_dim;
    if (a.qk_norm == model::QkNorm::kWhole) k_.rms_norm(x, norm.data(), spec_.norm_eps, width, x);
    clip(x, width);
    for (std::uint32_t h = 0; h < heads; ++h) {
      float* head = x + std::size_t{h} * a.head_dim;
      if (a.qk_norm == model::QkNorm::kHead) k_.rms_norm(head, norm.data(), spec_.norm_eps, a.head_dim, head);
      kernels::apply_rope(head, rope_.table(), pos, a.rope.interleaved);
    }
  };
  for (std::size_t r = 0; r < rows; ++r) {
    norm_and_rotate(q_.data() + r * a.heads * a.head_dim, a.heads, w.q_norm, rows_[r].position);
    norm_and_rotate(k_rows_.data() + r * a.kv_heads * a.head_dim, a.kv_heads, w.k_norm, rows_[r].position);
  }
  clip(v_rows_.data(), std::size_t{rows} * a.kv_heads * a.head_dim);
  write_kv(layer, sequences);
  attend(layer, sequences);
  linear(w.o, attn_.data(), block_.data(), rows);
}

void Forward::clip(float* x, std::size_t n) const {
  const float limit = spec_.attention.clip;
  if (limit == 0.0f) return;
  for (std::size_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -limit, limit);
}

void Forward::write_kv(std::uint32_t layer, std::span<const Sequence> sequences) {
  const model::AttentionSpec& a = spec_.attention;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Row row = rows_[r];
    const std::uint32_t page = sequences[row.sequence].pages[row.position / kernels::kPageTokens];
    const std::uint32_t at = row.position % kernels::kPageTokens;
    for (std::uint32_t h = 0; h < a.kv_heads; ++h) {
      const float* key = k_rows_.data() + (r * a.kv_heads + h) * a.head_dim;
      const float* value = v_rows_.data() + (r * a.kv_heads + h) * a.head_dim;
      const std::size_t size = kernels::kv_bytes(kv_.format);
      kernels::store_kv(kv_.format, key_page(page, layer, h) + at * size, kernels::kPageTokens, key,
                        a.head_dim);
      service::crash_point(service::CrashPoint::kKvRowHalf);
      kernels::store_kv(kv_.format, value_page(page, layer, h) + at * size * a.head_dim, 1, value,
                        a.head_dim);
    }
  }
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
  // An item is one row and one KV head: its query heads read the same pages.
  pool_.run(
      static_cast<std::uint32_t>(rows_.size()) * a.kv_heads, cost, [&](std::uint32_t item, std::uint32_t) {
        thread_local std::vector<float> scores;
        thread_local std::vector<const std::byte*> keys, values;
        const std::size_t r = item / a.kv_heads;
        const std::uint32_t kv_head = item % a.kv_heads;
        // Positions are counted from the first page that the row sees; those in it that it does not see get
        // probability 0.
        const std::uint32_t first = first_of(rows_[r].position), first_page = first / kernels::kPageTokens;
        const std::uint32_t unseen = first % kernels::kPageTokens;
        const std::uint32_t count = rows_[r].position + 1 - first_page * kernels::kPageTokens;
        const Sequence& s = sequences[rows_[r].sequence];
        keys.clear();
        values.clear();
        for (std::uint32_t p = 0; p * kernels::kPageTokens < count; ++p) {
          keys.push_back(key_page(s.pages[first_page + p], layer, kv_head));
          values.push_back(value_page(s.pages[first_page + p], layer, kv_head));
        }
        const std::vector<float>& sinks = weights_.layers[layer].sinks;
        scores.resize(keys.size() * kernels::kPageTokens + 1);
        for (std::uint32_t i = 0; i < per_kv; ++i) {
          const std::size_t head = (r * a.heads + kv_head * per_kv + i) * a.head_dim;
          k_.attention_scores(q_.data() + head, kv_.format, keys.data(), count, a.head_dim, scale,
                              scores.data());
          std::fill_n(scores.begin(), unseen, -std::numeric_limits<float>::infinity());
          // A sink stands behind the last position; its probability is dropped.
          if (!sinks.empty()) scores[count] = sinks[kv_head * per_kv + i];
          k_.softmax(scores.data(), sinks.empty() ? count : count + 1);
          k_.attention_values(scores.data(), kv_.format, values.data(), count, a.head_dim,
                              attn_.data() + head);
        }
      });
}

}  // namespace wisp::compute
