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
  if (!single_) {
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

std::uint32_t Forward::queries_at_once() const {
  const model::AttentionSpec& a = spec_.attention;
  if (!a.is_latent()) return rows_at_once() * (a.heads / a.kv_heads);
  return std::max(AttentionScratch::kQueries, (a.heads + kHeadGroups - 1) / kHeadGroups);
}

std::uint32_t Forward::rows_at_once() const {
  const model::AttentionSpec& a = spec_.attention;
  return std::max(1u, AttentionScratch::kQueries * a.kv_heads / a.heads);
}

std::uint32_t Forward::first_seen(std::uint32_t layer, std::uint32_t position) const {
  const std::uint32_t window = spec_.layers[layer].window;
  return window != 0 && position >= window ? position - window + 1 : 0;
}

void Forward::block_rows(std::uint32_t layer) {
  blocks_.clear();
  for (std::uint32_t r = 0; r < rows_.size(); ++r) {
    const std::uint32_t page = first_seen(layer, rows_[r].position) / kernels::kPageTokens;
    const bool joins = !blocks_.empty() && rows_[blocks_.back().begin].sequence == rows_[r].sequence &&
                       blocks_.back().first_page == page && r - blocks_.back().begin < rows_at_once();
    if (!joins) blocks_.push_back({r, r, page});
    blocks_.back().end = r + 1;
  }
}

void Forward::attend(std::uint32_t layer, std::span<const Sequence> sequences) {
  const model::AttentionSpec& a = spec_.attention;
  block_rows(layer);
  std::uint64_t cost = 0;
  for (const Row& row : rows_)
    cost += std::uint64_t{row.position + 1 - first_seen(layer, row.position)} * a.heads * a.head_dim * 2;
  if (single_) cost += rows_.size() * (a.heads + 2 * a.kv_heads) * a.head_dim * 4;
  pool_.run(static_cast<std::uint32_t>(blocks_.size()) * a.kv_heads, cost,
            [&](std::uint32_t item, std::uint32_t thread) {
              const RowBlock& b = blocks_[item / a.kv_heads];
              if (single_) finish_heads(layer, b.begin, item % a.kv_heads, sequences);
              attend_block(layer, b, item % a.kv_heads, sequences, attention_[thread]);
            });
}

void Forward::attend_block(std::uint32_t layer, const RowBlock& b, std::uint32_t kv_head,
                           std::span<const Sequence> sequences, AttentionScratch& own) {
  const model::AttentionSpec& a = spec_.attention;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
  const std::uint32_t per_kv = a.heads / a.kv_heads, rows = b.end - b.begin, n = rows * per_kv;
  const std::size_t width = std::size_t{per_kv} * a.head_dim;  // of a row's queries
  // Positions are counted from the first page that the rows see; those in it that a row does not see get
  // probability 0.
  const std::uint32_t before = b.first_page * kernels::kPageTokens;
  const std::uint32_t count = rows_[b.end - 1].position + 1 - before;
  const Sequence& s = sequences[rows_[b.begin].sequence];
  for (std::uint32_t p = 0; p * kernels::kPageTokens < count; ++p) {
    own.keys[p] = key_page(s.pages[b.first_page + p], layer, kv_head);
    own.values[p] = value_page(s.pages[b.first_page + p], layer, kv_head);
  }
  const auto of_row = [&](std::vector<float>& x, std::uint32_t i) {
    return x.data() + (std::size_t{b.begin + i} * a.heads + kv_head * per_kv) * a.head_dim;
  };
  float *query = of_row(q_, 0), *out = of_row(attn_, 0);
  if (rows > 1) {
    query = own.query.data();
    out = own.part.data();
    for (std::uint32_t i = 0; i < rows; ++i) std::copy_n(of_row(q_, i), width, query + i * width);
  }
  k_.attention_scores({kv_.format, own.keys.data(), count, a.head_dim}, query, a.head_dim, n, scale,
                      own.scores.data(), own.stride);
  const std::vector<float>& sinks = weights_.layers[layer].sinks;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t position = rows_[b.begin + i / per_kv].position;
    float* const scores = own.scores.data() + i * own.stride;
    own.counts[i] = position + 1 - before;
    std::fill_n(scores, first_seen(layer, position) - before, -std::numeric_limits<float>::infinity());
    // A sink stands behind the last position; its probability is dropped.
    if (!sinks.empty()) scores[own.counts[i]] = sinks[kv_head * per_kv + i % per_kv];
    k_.softmax(scores, own.counts[i] + (sinks.empty() ? 0 : 1));
  }
  k_.attention_values({kv_.format, own.values.data(), count, a.head_dim}, own.scores.data(), own.stride,
                      own.counts.data(), n, out, a.head_dim);
  if (rows > 1)
    for (std::uint32_t i = 0; i < rows; ++i) std::copy_n(out + i * width, width, of_row(attn_, i));
}

}  // namespace wisp::compute
