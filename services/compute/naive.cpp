#include "wisp/kernels/naive.hpp"

#include <algorithm>
#include <limits>

#include "services/compute/forward.hpp"

/// Latent attention in its naive form (spec 2.5): each head's keys and values are made from the latents in
/// the pages, then attended to as in grouped-query attention. It pays off where many rows share the making.
namespace wisp::compute {

using kernels::kPageTokens;
using kernels::KvFormat;

namespace {
constexpr std::uint32_t kBlockPages = kernels::kNaiveBlock / kPageTokens;
}

float* Forward::naive_keys(std::uint32_t slot, std::uint32_t page) {
  return naive_keys_.data() + (slot * naive_pages_ + page) * kPageTokens * spec_.attention.head_dim;
}

float* Forward::naive_values(std::uint32_t slot, std::uint32_t page) {
  return naive_values_.data() + (slot * naive_pages_ + page) * kPageTokens * spec_.attention.latent.value;
}

void Forward::attend_naive(std::uint32_t layer, std::span<const Sequence> sequences, const Stretch& rows) {
  const model::AttentionSpec& a = spec_.attention;
  const model::LatentSpec& lat = a.latent;
  const std::uint32_t at_once = std::min(kernels::kNaiveHeads, a.heads);
  if (naive_pages_ == 0) {
    naive_pages_ = (ctx_ + kPageTokens - 1) / kPageTokens;
    naive_keys_.resize(at_once * naive_pages_ * kPageTokens * a.head_dim);
    naive_values_.resize(at_once * naive_pages_ * kPageTokens * lat.value);
    // Padding rows of a tile stay zero.
    head_k_up_.resize(std::size_t{at_once} * kernels::tiles_of(lat.nope) * lat.kv_rank);
    head_v_up_.resize(std::size_t{at_once} * kernels::tiles_of(lat.value) * lat.kv_rank);
    for (AttentionScratch& own : attention_) own.make_naive(lat);
  }
  const Sequence& s = sequences[rows_[rows.begin].sequence];
  const std::uint32_t pages = rows_[rows.end - 1].position / kPageTokens + 1;
  const std::uint32_t blocks = (pages + kBlockPages - 1) / kBlockPages;
  const std::uint64_t width = std::uint64_t{lat.nope} + lat.value;
  std::uint64_t seen = 0;
  for (std::uint32_t r = rows.begin; r < rows.end; ++r) seen += rows_[r].position + 1;
  for (std::uint32_t first = 0; first < a.heads; first += at_once) {
    const std::uint32_t heads = std::min(at_once, a.heads - first);
    pool_.run(heads, heads * width * lat.kv_rank, [&](std::uint32_t i, std::uint32_t thread) {
      widen_head(layer, first + i, i, attention_[thread]);
    });
    pool_.run(heads * blocks, heads * width * lat.kv_rank * pages * kPageTokens,
              [&](std::uint32_t item, std::uint32_t thread) {
                const std::uint32_t begin = item / heads * kBlockPages;
                rebuild(layer, s, item % heads, begin, std::min(begin + kBlockPages, pages),
                        attention_[thread]);
              });
    const std::uint32_t of_rows = (rows.rows() + AttentionScratch::kQueries - 1) / AttentionScratch::kQueries;
    pool_.run(heads * of_rows, heads * seen * (a.head_dim + lat.value),
              [&](std::uint32_t item, std::uint32_t thread) {
                const std::uint32_t begin = rows.begin + item / heads * AttentionScratch::kQueries;
                attend_rows(begin, std::min(begin + AttentionScratch::kQueries, rows.end),
                            first + item % heads, item % heads, attention_[thread]);
              });
  }
}

void Forward::widen_head(std::uint32_t layer, std::uint32_t head, std::uint32_t slot, AttentionScratch& own) {
  const LayerWeights& w = weights_.layers[layer];
  const model::AttentionSpec& a = spec_.attention;
  const std::uint32_t rank = a.latent.kv_rank, nope = a.latent.nope, value = a.latent.value;
  float* const row = own.matrix_row.data();
  const auto at = [&](std::vector<TileColumn>& m, std::uint32_t rows, std::uint32_t r,
                      std::uint32_t c) -> float& {
    const std::size_t tile = std::size_t{slot} * kernels::tiles_of(rows) + r / kernels::kTileRows;
    return m[tile * rank + c].row[r % kernels::kTileRows];
  };
  // k_up is stored for folding queries, turned: a row of it is a column here.
  for (std::uint32_t c = 0; c < rank; ++c) {
    kernels::gather_row(w.k_up, head * a.key_up_rows() + c, row);
    for (std::uint32_t r = 0; r < nope; ++r) at(head_k_up_, nope, r, c) = row[r];
  }
  for (std::uint32_t r = 0; r < value; ++r) {
    kernels::gather_row(w.v_up, head * a.value_up_rows() + r, row);
    for (std::uint32_t c = 0; c < rank; ++c) at(head_v_up_, value, r, c) = row[c];
  }
}

void Forward::rebuild(std::uint32_t layer, const Sequence& s, std::uint32_t slot, std::uint32_t begin,
                      std::uint32_t end, AttentionScratch& own) {
  const model::AttentionSpec& a = spec_.attention;
  const std::uint32_t rank = a.latent.kv_rank, nope = a.latent.nope, value = a.latent.value;
  float *const latents = own.latents.data(), *const keys = own.made.data();
  const auto matrix = [&](const std::vector<TileColumn>& m, std::uint32_t rows) {
    kernels::WeightView w;
    w.format = kernels::WeightFormat::kF32;
    w.rows = rows;
    w.cols = rank;
    w.codes =
        reinterpret_cast<const std::uint8_t*>(m.data() + std::size_t{slot} * kernels::tiles_of(rows) * rank);
    return w;
  };
  const kernels::WeightView k_up = matrix(head_k_up_, nope), v_up = matrix(head_v_up_, value);
  for (std::uint32_t p = begin; p < end; ++p) {
    const std::byte* page = latent_page(s.pages[p], layer);
    kernels::turn_kv_page(kv_.format, page, rank, latents);
    k_.linear(k_up, latents, rank, kPageTokens, keys, nope, 0, kernels::tiles_of(nope));
    k_.linear(v_up, latents, rank, kPageTokens, naive_values(slot, p), value, 0, kernels::tiles_of(value));
    float* by_entry = naive_keys(slot, p);
    for (std::uint32_t e = 0; e < nope; ++e)
      for (std::uint32_t t = 0; t < kPageTokens; ++t)
        by_entry[e * kPageTokens + t] = keys[std::size_t{t} * nope + e];
    // The rotated part is the same for all heads and lies as it is wanted.
    kernels::load_kv(kv_.format, page + std::size_t{rank} * kPageTokens * kernels::kv_bytes(kv_.format),
                     std::size_t{kPageTokens} * a.rope.width, by_entry + std::size_t{nope} * kPageTokens);
  }
}

void Forward::attend_rows(std::uint32_t begin, std::uint32_t end, std::uint32_t head, std::uint32_t slot,
                          AttentionScratch& own) {
  const model::AttentionSpec& a = spec_.attention;
  const std::uint32_t count = rows_[end - 1].position + 1, n = end - begin;
  for (std::uint32_t p = 0; p * kPageTokens < count; ++p) {
    own.keys[p] = reinterpret_cast<const std::byte*>(naive_keys(slot, p));
    own.values[p] = reinterpret_cast<const std::byte*>(naive_values(slot, p));
  }
  const std::size_t at = std::size_t{begin} * a.heads + head;
  k_.attention_scores({KvFormat::kF32, own.keys.data(), count, a.head_dim}, q_.data() + at * a.head_dim,
                      std::size_t{a.heads} * a.head_dim, n, latent_scale(), own.scores.data(), own.stride);
  for (std::uint32_t i = 0; i < n; ++i) {
    float* const scores = own.scores.data() + i * own.stride;
    own.counts[i] = rows_[begin + i].position + 1;
    for (const std::uint32_t p : unseen_by(begin + i, own.counts[i], own))
      scores[p] = -std::numeric_limits<float>::infinity();
    k_.softmax(scores, own.counts[i]);
  }
  k_.attention_values({KvFormat::kF32, own.values.data(), count, a.latent.value}, own.scores.data(),
                      own.stride, own.counts.data(), n, attn_.data() + at * a.value_up_rows(),
                      std::size_t{a.heads} * a.value_up_rows());
}

}  // namespace wisp::compute
