#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "service/crash_point.hpp"
#include "services/compute/forward.hpp"
#include "wisp/kernels/canon.hpp"

/// Latent attention (spec 2.5): what both forms share, and the absorbed one. A row's form follows from its
/// position and its prompt's length, so its bits do not depend on how many rows stand beside it.
namespace wisp::compute {

namespace {
constexpr std::uint32_t kBlockPages = kernels::kBlockColumns / kernels::kPageTokens;
}  // namespace

std::byte* Forward::latent_page(std::uint32_t page, std::uint32_t layer) const {
  return kv_.number(page, layer_at_[layer] * kernels::kPageTokens);
}

void Forward::linear_per_head(const kernels::WeightView& w, std::uint32_t rows_per_head, const float* x,
                              std::size_t x_stride, std::size_t x_head, float* y, const Stretch& rows) {
  const std::uint32_t tiles = rows_per_head / kernels::kTileRows;
  x += rows.begin * x_stride;
  y += std::size_t{rows.begin} * w.rows;
  pool_.run(spec_.attention.heads, std::uint64_t{w.rows} * w.cols * rows.rows(),
            [&](std::uint32_t head, std::uint32_t) {
              k_.linear(w, x + head * x_head, x_stride, rows.rows(), y, w.rows, head * tiles,
                        (head + 1) * tiles);
            });
}

void Forward::latent_attention(std::uint32_t layer, std::span<const Sequence> sequences) {
  const LayerWeights& w = weights_.layers[layer];
  const model::AttentionSpec& a = spec_.attention;
  const model::LatentSpec& lat = a.latent;
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  const bool chooses = a.indexer.heads != 0 && spec_.layers[layer].indexes;
  const Product kv_a{w.kv_a, k_rows_.data()}, index_k{w.index_k, index_k_.data()},
      index_weights{w.index_weights, index_weights_.data()};
  if (lat.q_rank != 0) {
    const Product q_a{w.q_a, q_latent_.data()}, q{w.q, q_.data()}, index_q{w.index_q, index_q_.data()};
    if (chooses)
      products(normed_.data(), {q_a, kv_a, index_k, index_weights}, rows);
    else
      products(normed_.data(), {q_a, kv_a}, rows);
    for_rows(rows, lat.q_rank, [&](std::size_t r) {
      float* x = q_latent_.data() + r * lat.q_rank;
      k_.rms_norm(x, w.q_a_norm.data(), lat.norm_eps, lat.q_rank, x);
    });
    if (chooses)
      products(q_latent_.data(), {q, index_q}, rows);
    else
      products(q_latent_.data(), {q}, rows);
  } else {
    WISP_CHECK(!chooses);  // its queries are made from the latents
    products(normed_.data(), {{w.q, q_.data()}, kv_a}, rows);
  }
  // The latent row is one item more than the groups of heads.
  const std::uint32_t items = kHeadGroups + 1, per_group = heads_of_group();
  const std::uint64_t cost = std::uint64_t{rows} * (a.heads * a.rope.width + a.kv_width()) * 4;
  pool_.run(rows * items, cost, [&](std::uint32_t item, std::uint32_t) {
    const std::size_t r = item / items;
    const std::uint32_t first = item % items * per_group, last = std::min(a.heads, first + per_group);
    if (item % items == kHeadGroups) return finish_latent(layer, r, sequences);
    for (std::size_t h = first; h < last; ++h)
      kernels::apply_rope(q_.data() + (r * a.heads + h) * a.head_dim + lat.nope, rope_.table(),
                          rows_[r].position, a.rope.interleaved);
  });
  if (chooses) choose_positions(layer, sequences);
  for (const Stretch& s : stretches_) {
    if (s.naive)
      attend_naive(layer, sequences, s);
    else
      attend_absorbed(layer, sequences, s);
  }
  // The heads' outputs close up, without the padding of their tiles.
  const std::uint32_t padded = a.value_up_rows();
  if (padded != lat.value)
    for (std::size_t i = 0; i < std::size_t{rows} * a.heads; ++i)
      std::copy_n(attn_.data() + i * padded, lat.value, attn_.data() + i * lat.value);
  products(attn_.data(), {{w.o, block_.data(), x_.data()}}, rows);
}

void Forward::finish_latent(std::uint32_t layer, std::size_t r, std::span<const Sequence> sequences) {
  const model::AttentionSpec& a = spec_.attention;
  const Row row = rows_[r];
  const std::uint32_t width = a.kv_width(), rank = a.latent.kv_rank;
  float* const kv = k_rows_.data() + r * width;
  k_.rms_norm(kv, weights_.layers[layer].kv_a_norm.data(), a.latent.norm_eps, rank, kv);
  kernels::apply_rope(kv + rank, rope_.table(), row.position, a.rope.interleaved);
  const std::uint32_t page = sequences[row.sequence].pages[row.position / kernels::kPageTokens];
  const std::size_t size = kernels::kv_bytes(kv_.format), half = width / 2;
  std::byte* to = latent_page(page, layer) + row.position % kernels::kPageTokens * size;
  kernels::store_kv(kv_.format, to, kernels::kPageTokens, kv, half);
  service::crash_point(service::CrashPoint::kKvRowHalf);
  kernels::store_kv(kv_.format, to + half * kernels::kPageTokens * size, kernels::kPageTokens, kv + half,
                    width - half);
}

float Forward::latent_scale() const {
  return static_cast<float>(rope_.score_factor() / std::sqrt(static_cast<double>(spec_.attention.head_dim)));
}

std::span<const std::uint32_t> Forward::unseen_by(std::size_t r, std::uint32_t count,
                                                  AttentionScratch& own) const {
  if (spec_.attention.indexer.heads == 0 || count <= spec_.attention.indexer.top_k) return {};
  std::size_t n = 0;
  for (std::uint32_t p = 0; p < count; ++p)
    if (!sees(r, p)) own.unseen[n++] = p;
  return std::span(own.unseen).first(n);
}

void Forward::attend_absorbed(std::uint32_t layer, std::span<const Sequence> sequences, const Stretch& rows) {
  const LayerWeights& w = weights_.layers[layer];
  const model::AttentionSpec& a = spec_.attention;
  linear_per_head(w.k_up, a.key_up_rows(), q_.data(), std::size_t{a.heads} * a.head_dim, a.head_dim,
                  folded_.data(), rows);
  mix_latents(layer, sequences, rows);
  linear_per_head(w.v_up, a.value_up_rows(), mixed_.data(), std::size_t{a.heads} * a.latent.kv_rank,
                  a.latent.kv_rank, attn_.data(), rows);
}

void Forward::mix_latents(std::uint32_t layer, std::span<const Sequence> sequences, const Stretch& rows) {
  const model::AttentionSpec& a = spec_.attention;
  const std::uint32_t rank = a.latent.kv_rank, width = a.kv_width(), rotated = a.rope.width;
  const float scale = latent_scale();
  const std::uint32_t groups = std::min(kHeadGroups, a.heads), per_group = heads_of_group();
  std::uint64_t cost = 0;
  for (std::uint32_t r = rows.begin; r < rows.end; ++r)
    cost += std::uint64_t{rows_[r].position + 1} * a.heads * (width + rank);
  pool_.run(rows.rows() * groups, cost, [&](std::uint32_t item, std::uint32_t thread) {
    AttentionScratch& own = attention_[thread];
    const std::size_t r = rows.begin + item / groups;
    const std::uint32_t first = item % groups * per_group, last = std::min(a.heads, first + per_group);
    const std::uint32_t count = rows_[r].position + 1;
    const std::uint32_t pages = (count + kernels::kPageTokens - 1) / kernels::kPageTokens;
    const Sequence& s = sequences[rows_[r].sequence];
    for (std::uint32_t p = 0; p < pages; ++p) own.keys[p] = latent_page(s.pages[p], layer);
    const std::uint32_t n = last - first;
    const std::span<const std::uint32_t> unseen = unseen_by(r, count, own);
    for (std::uint32_t h = first; h < last; ++h) {
      float* const query = own.query.data() + std::size_t{h - first} * width;
      std::copy_n(folded_.data() + (r * a.heads + h) * a.key_up_rows(), rank, query);
      std::copy_n(q_.data() + (r * a.heads + h) * a.head_dim + a.latent.nope, rotated, query + rank);
    }
    k_.attention_scores({kv_.format, own.keys.data(), count, width}, own.query.data(), width, n, scale,
                        own.scores.data(), own.stride);
    for (std::uint32_t i = 0; i < n; ++i) {
      float* const scores = own.scores.data() + i * own.stride;
      for (const std::uint32_t p : unseen) scores[p] = -std::numeric_limits<float>::infinity();
      k_.softmax(scores, count);
    }
    // Latents lie by entry; mixing wants them by position. A block of positions is turned once for all heads;
    // a block is also what one chain of a product spans, so blocks are added as CANON.md adds them.
    for (std::uint32_t begin = 0; begin < pages; begin += kBlockPages) {
      const std::uint32_t of_block = std::min(kBlockPages, pages - begin);
      for (std::uint32_t p = 0; p < of_block; ++p) {
        float* turned = own.block.data() + std::size_t{p} * kernels::kPageTokens * rank;
        kernels::turn_kv_page(kv_.format, own.keys[begin + p], rank, turned);
        own.values[p] = reinterpret_cast<const std::byte*>(turned);
      }
      const std::uint32_t at = begin * kernels::kPageTokens;
      const std::uint32_t positions = std::min(count - at, of_block * kernels::kPageTokens);
      std::fill_n(own.counts.begin(), n, positions);
      float* const out = mixed_.data() + (r * a.heads + first) * rank;
      k_.attention_values({kernels::KvFormat::kF32, own.values.data(), positions, rank},
                          own.scores.data() + at, own.stride, own.counts.data(), n,
                          begin == 0 ? out : own.part.data(), rank);
      if (begin != 0) k_.add(out, own.part.data(), std::size_t{n} * rank);
    }
  });
}

}  // namespace wisp::compute
