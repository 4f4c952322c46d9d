#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "services/compute/forward.hpp"

/// The indexer of latent attention (spec 2.6): scores every position a row could see and keeps the best.
namespace wisp::compute {

namespace {
constexpr float kKeyNormEps = 1e-6f;
}

std::byte* Forward::index_page(std::uint32_t page, std::uint32_t layer) const {
  return kv_.number(page, (layer_at_[layer] + spec_.attention.kv_width()) * kernels::kPageTokens);
}

void Forward::choose_positions(std::uint32_t layer, std::span<const Sequence> sequences) {
  const model::IndexerSpec& x = spec_.attention.indexer;
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  // The key is one item more than the groups of heads.
  const std::uint32_t items = kHeadGroups + 1, per_group = (x.heads + kHeadGroups - 1) / kHeadGroups;
  const std::uint64_t work = std::uint64_t{rows} * (x.heads + 1) * x.head_dim * 2;
  pool_.run(rows * items, work, [&](std::uint32_t item, std::uint32_t) {
    const std::size_t r = item / items;
    const std::uint32_t first = item % items * per_group, last = std::min(x.heads, first + per_group);
    if (item % items == kHeadGroups) return finish_index_key(layer, r, sequences);
    for (std::size_t h = first; h < last; ++h)
      kernels::apply_rope(index_q_.data() + (r * x.heads + h) * x.head_dim, rope_.table(), rows_[r].position,
                          x.interleaved);
  });
  std::uint64_t cost = 0;
  for (const Row& row : rows_) cost += std::uint64_t{row.position + 1} * x.heads * x.head_dim;
  pool_.run(rows, cost, [&](std::uint32_t r, std::uint32_t thread) {
    if (rows_[r].position >= x.top_k)
      choose_for_row(r, layer, sequences[rows_[r].sequence], attention_[thread]);
  });
}

void Forward::finish_index_key(std::uint32_t layer, std::size_t r, std::span<const Sequence> sequences) {
  const LayerWeights& w = weights_.layers[layer];
  const model::IndexerSpec& x = spec_.attention.indexer;
  const Row row = rows_[r];
  float* const key = index_k_.data() + r * x.head_dim;
  kernels::layer_norm(key, w.index_k_norm.data(), w.index_k_norm_bias.data(), kKeyNormEps, x.head_dim);
  kernels::apply_rope(key, rope_.table(), row.position, x.interleaved);
  // From position 0 on, though a choice is made only later.
  const std::uint32_t page = sequences[row.sequence].pages[row.position / kernels::kPageTokens];
  std::byte* to =
      index_page(page, layer) + row.position % kernels::kPageTokens * kernels::kv_bytes(kv_.format);
  kernels::store_kv(kv_.format, to, kernels::kPageTokens, key, x.head_dim);
}

void Forward::choose_for_row(std::size_t r, std::uint32_t layer, const Sequence& s, AttentionScratch& own) {
  const model::AttentionSpec& a = spec_.attention;
  const model::IndexerSpec& x = a.indexer;
  const std::uint32_t count = rows_[r].position + 1;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(x.head_dim)));
  const auto share = static_cast<float>(1.0 / std::sqrt(static_cast<double>(x.heads)));
  for (std::uint32_t p = 0; p * kernels::kPageTokens < count; ++p)
    own.keys[p] = index_page(s.pages[p], layer);
  float* const scores = own.index_scores.data();
  std::fill_n(scores, count, 0.0f);
  const kernels::KvRows rows{kv_.format, own.keys.data(), count, x.head_dim};
  for (std::uint32_t first = 0; first < x.heads; first += AttentionScratch::kQueries) {
    const std::uint32_t n = std::min(AttentionScratch::kQueries, x.heads - first);
    k_.attention_scores(rows, index_q_.data() + (r * x.heads + first) * x.head_dim, x.head_dim, n, scale,
                        own.scores.data(), own.stride);
    for (std::uint32_t i = 0; i < n; ++i) {
      const float* const part = own.scores.data() + i * own.stride;
      const float weight = index_weights_[r * x.heads + first + i] * share;
      for (std::uint32_t p = 0; p < count; ++p)
        scores[p] = std::fma(weight, part[p] > 0.0f ? part[p] : 0.0f, scores[p]);
    }
  }
  const std::span<std::uint32_t> order(own.order.data(), count);
  std::iota(order.begin(), order.end(), 0u);
  // Of equals, -0 and 0 among them, the lowest position; what is no number comes last.
  const auto better = [&](std::uint32_t i, std::uint32_t j) {
    const float u = scores[i], v = scores[j];
    if (std::isnan(u) || std::isnan(v)) return std::isnan(v) && (!std::isnan(u) || i < j);
    return u > v || (u == v && i < j);
  };
  std::nth_element(order.begin(), order.begin() + (x.top_k - 1), order.end(), better);
  std::uint64_t* bits = chosen_positions_.data() + r * position_words_;
  std::fill_n(bits, position_words_, std::uint64_t{0});
  for (std::uint32_t i = 0; i < x.top_k; ++i) bits[order[i] / 64] |= std::uint64_t{1} << order[i] % 64;
}

}  // namespace wisp::compute
