#include <algorithm>
#include <cmath>
#include <limits>

#include "service/crash_point.hpp"
#include "services/compute/forward.hpp"
#include "wisp/kernels/canon.hpp"

/// Latent attention (spec 2.5): what both forms share, and the absorbed one. A row's form follows from its
/// position and its prompt's length, so its bits do not depend on how many rows stand beside it.
namespace wisp::compute {

namespace {
/// Items that the heads of a row are shared out to.
constexpr std::uint32_t kHeadGroups = 4;
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
  if (lat.q_rank != 0) {
    linear(w.q_a, normed_.data(), q_latent_.data(), rows);
    for (std::size_t r = 0; r < rows; ++r) {
      float* q = q_latent_.data() + r * lat.q_rank;
      k_.rms_norm(q, w.q_a_norm.data(), lat.norm_eps, lat.q_rank, q);
    }
    linear(w.q, q_latent_.data(), q_.data(), rows);
  } else {
    linear(w.q, normed_.data(), q_.data(), rows);
  }
  linear(w.kv_a, normed_.data(), k_rows_.data(), rows);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t h = 0; h < a.heads; ++h)
      kernels::apply_rope(q_.data() + (r * a.heads + h) * a.head_dim + lat.nope, rope_.table(),
                          rows_[r].position, a.rope.interleaved);
    float* kv = k_rows_.data() + r * a.kv_width();
    k_.rms_norm(kv, w.kv_a_norm.data(), lat.norm_eps, lat.kv_rank, kv);
    kernels::apply_rope(kv + lat.kv_rank, rope_.table(), rows_[r].position, a.rope.interleaved);
  }
  write_latents(layer, sequences);
  if (a.indexer.heads != 0 && spec_.layers[layer].indexes) choose_positions(layer, sequences);
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
  linear(w.o, attn_.data(), block_.data(), rows);
}

void Forward::write_latents(std::uint32_t layer, std::span<const Sequence> sequences) {
  const std::uint32_t width = spec_.attention.kv_width();
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Row row = rows_[r];
    const std::uint32_t page = sequences[row.sequence].pages[row.position / kernels::kPageTokens];
    const std::size_t size = kernels::kv_bytes(kv_.format), half = width / 2;
    std::byte* to = latent_page(page, layer) + row.position % kernels::kPageTokens * size;
    const float* from = k_rows_.data() + r * width;
    kernels::store_kv(kv_.format, to, kernels::kPageTokens, from, half);
    service::crash_point(service::CrashPoint::kKvRowHalf);
    kernels::store_kv(kv_.format, to + half * kernels::kPageTokens * size, kernels::kPageTokens, from + half,
                      width - half);
  }
}

float Forward::latent_scale() const {
  return static_cast<float>(rope_.score_factor() / std::sqrt(static_cast<double>(spec_.attention.head_dim)));
}

std::span<const std::uint32_t> Forward::unseen_by(std::size_t r, std::uint32_t count) const {
  thread_local std::vector<std::uint32_t> unseen;
  unseen.clear();
  unseen.reserve(count);
  if (spec_.attention.indexer.heads != 0 && count > spec_.attention.indexer.top_k)
    for (std::uint32_t p = 0; p < count; ++p)
      if (!sees(r, p)) unseen.push_back(p);
  return unseen;
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
  const std::uint32_t groups = std::min(kHeadGroups, a.heads);
  const std::uint32_t per_group = (a.heads + groups - 1) / groups;
  std::uint64_t cost = 0;
  for (std::uint32_t r = rows.begin; r < rows.end; ++r)
    cost += std::uint64_t{rows_[r].position + 1} * a.heads * (width + rank);
  pool_.run(rows.rows() * groups, cost, [&](std::uint32_t item, std::uint32_t) {
    thread_local std::vector<float> scores, query, block, part;
    thread_local std::vector<const std::byte*> keys, values;
    const std::size_t r = rows.begin + item / groups;
    const std::uint32_t first = item % groups * per_group, last = std::min(a.heads, first + per_group);
    const std::uint32_t count = rows_[r].position + 1;
    const Sequence& s = sequences[rows_[r].sequence];
    keys.clear();
    for (std::uint32_t p = 0; p * kernels::kPageTokens < count; ++p)
      keys.push_back(latent_page(s.pages[p], layer));
    const std::size_t stride = keys.size() * kernels::kPageTokens;
    scores.resize(stride * per_group);
    query.resize(width);
    const std::span<const std::uint32_t> unseen = unseen_by(r, count);
    for (std::uint32_t h = first; h < last; ++h) {
      std::copy_n(folded_.data() + (r * a.heads + h) * a.key_up_rows(), rank, query.data());
      std::copy_n(q_.data() + (r * a.heads + h) * a.head_dim + a.latent.nope, rotated, query.data() + rank);
      float* own = scores.data() + (h - first) * stride;
      k_.attention_scores(query.data(), kv_.format, keys.data(), count, width, scale, own);
      for (const std::uint32_t p : unseen) own[p] = -std::numeric_limits<float>::infinity();
      k_.softmax(own, count);
    }
    // Latents lie by entry; mixing wants them by position. A block of positions is turned once for all heads;
    // a block is also what one chain of a product spans, so blocks are added as CANON.md adds them.
    block.resize(std::size_t{kernels::kBlockColumns} * rank);
    part.resize(rank);
    for (std::uint32_t begin = 0; begin < keys.size(); begin += kBlockPages) {
      const std::uint32_t pages =
          std::min<std::uint32_t>(kBlockPages, static_cast<std::uint32_t>(keys.size()) - begin);
      values.clear();
      for (std::uint32_t p = 0; p < pages; ++p) {
        float* turned = block.data() + std::size_t{p} * kernels::kPageTokens * rank;
        kernels::turn_kv_page(kv_.format, keys[begin + p], rank, turned);
        values.push_back(reinterpret_cast<const std::byte*>(turned));
      }
      const std::uint32_t at = begin * kernels::kPageTokens;
      const std::uint32_t n = std::min(count - at, pages * kernels::kPageTokens);
      for (std::uint32_t h = first; h < last; ++h) {
        float* out = mixed_.data() + (r * a.heads + h) * rank;
        const float* own = scores.data() + (h - first) * stride + at;
        k_.attention_values(own, kernels::KvFormat::kF32, values.data(), n, rank,
                            begin == 0 ? out : part.data());
        if (begin != 0) k_.add(out, part.data(), rank);
      }
    }
  });
}

}  // namespace wisp::compute
