#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "services/compute/forward.hpp"

/// The indexer of latent attention (spec 2.6): scores every position a row could see and keeps the best.
namespace wisp::compute {

namespace {
constexpr float kKeyNormEps = 1e-6f;
/// Positions of an item, whole pages, where those of one row are shared out.
constexpr std::uint32_t kIndexBlock = 256;
}  // namespace

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
  // Many rows are shared out as they are; the positions of few rows are.
  if (rows >= 2 * pool_.threads()) {
    std::uint64_t cost = 0;
    for (const Row& row : rows_) cost += std::uint64_t{row.position + 1} * x.heads * x.head_dim;
    return pool_.run(rows, cost, [&](std::uint32_t r, std::uint32_t thread) {
      const std::uint32_t count = rows_[r].position + 1;
      if (count <= x.top_k) return;
      AttentionScratch& own = attention_[thread];
      score_positions(r, layer, sequences[rows_[r].sequence], 0, count, own, own.index_scores.data());
      keep_best(r, count, own);
    });
  }
  for (std::size_t r = 0; r < rows; ++r) {
    const std::uint32_t count = rows_[r].position + 1;
    if (count <= x.top_k) continue;
    float* const scores = attention_[0].index_scores.data();
    pool_.run((count + kIndexBlock - 1) / kIndexBlock, std::uint64_t{count} * x.heads * x.head_dim,
              [&](std::uint32_t item, std::uint32_t thread) {
                const std::uint32_t begin = item * kIndexBlock, end = std::min(count, begin + kIndexBlock);
                score_positions(r, layer, sequences[rows_[r].sequence], begin, end, attention_[thread],
                                scores + begin);
              });
    keep_best(r, count, attention_[0]);
  }
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

void Forward::score_positions(std::size_t r, std::uint32_t layer, const Sequence& s, std::uint32_t begin,
                              std::uint32_t end, AttentionScratch& own, float* scores) {
  const model::IndexerSpec& x = spec_.attention.indexer;
  const std::uint32_t count = end - begin, first = begin / kernels::kPageTokens;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(x.head_dim)));
  const auto share = static_cast<float>(1.0 / std::sqrt(static_cast<double>(x.heads)));
  for (std::uint32_t p = 0; p * kernels::kPageTokens < count; ++p)
    own.keys[p] = index_page(s.pages[first + p], layer);
  std::fill_n(scores, count, 0.0f);
  const kernels::KvRows rows{kv_.format, own.keys.data(), count, x.head_dim};
  for (std::uint32_t head = 0; head < x.heads; head += AttentionScratch::kQueries) {
    const std::uint32_t n = std::min(AttentionScratch::kQueries, x.heads - head);
    k_.attention_scores(rows, index_q_.data() + (r * x.heads + head) * x.head_dim, x.head_dim, n, scale,
                        own.scores.data(), own.stride);
    for (std::uint32_t i = 0; i < n; ++i) {
      const float* const part = own.scores.data() + i * own.stride;
      const float weight = index_weights_[r * x.heads + head + i] * share;
      for (std::uint32_t p = 0; p < count; ++p)
        scores[p] = std::fma(weight, part[p] > 0.0f ? part[p] : 0.0f, scores[p]);
    }
  }
}

void Forward::keep_best(std::size_t r, std::uint32_t count, AttentionScratch& own) {
  const std::uint32_t top_k = spec_.attention.indexer.top_k;
  const float* const scores = own.index_scores.data();
  const std::span<std::uint32_t> order(own.order.data(), count);
  std::iota(order.begin(), order.end(), 0u);
  // Of equals, -0 and 0 among them, the lowest position; what is no number comes last.
  const auto better = [&](std::uint32_t i, std::uint32_t j) {
    const float u = scores[i], v = scores[j];
    if (std::isnan(u) || std::isnan(v)) return std::isnan(v) && (!std::isnan(u) || i < j);
    return u > v || (u == v && i < j);
  };
  std::nth_element(order.begin(), order.begin() + (top_k - 1), order.end(), better);
  std::uint64_t* bits = chosen_positions_.data() + r * position_words_;
  std::fill_n(bits, position_words_, std::uint64_t{0});
  for (std::uint32_t i = 0; i < top_k; ++i) bits[order[i] / 64] |= std::uint64_t{1} << order[i] % 64;
}

}  // namespace wisp::compute
