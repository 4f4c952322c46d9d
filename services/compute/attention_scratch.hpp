#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/model_spec.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/kv_format.hpp"

namespace wisp::compute {

/// Where one thread works on attention: room for a whole context, so that no step allocates.
struct AttentionScratch {
  /// Queries that read the same pages are answered together, some eight at a time: a key or value that is in
  /// a register then serves them all.
  static constexpr std::uint32_t kQueries = 8;

  std::size_t stride = 0;                      ///< of scores: positions of whole pages, and a sink
  std::vector<float> scores;                   ///< [queries, stride]
  std::vector<std::uint32_t> counts;           ///< [queries] positions that each sees
  std::vector<const std::byte*> keys, values;  ///< [pages]
  std::vector<float> query;                    ///< [queries, entries of a key]
  std::vector<float> part;                     ///< [queries, entries of a value] of a block of positions

  // latent attention
  std::vector<float> block;           ///< [positions of a block, kv_rank] latents by position
  std::vector<std::uint32_t> unseen;  ///< positions that the indexer left out

  // the indexer
  std::vector<float> index_scores;   ///< [positions]
  std::vector<std::uint32_t> order;  ///< [positions]

  // naive rows, empty until the first of them
  std::vector<float> matrix_row;     ///< [kv_rank or nope]
  std::vector<float> latents, made;  ///< [16, kv_rank], [16, nope]

  /// `queries`: how many at a time.
  AttentionScratch(const model::AttentionSpec& a, std::uint32_t ctx, std::uint32_t queries) {
    const std::size_t pages = (std::size_t{ctx} + kernels::kPageTokens - 1) / kernels::kPageTokens;
    stride = pages * kernels::kPageTokens + 1;
    scores.resize(stride * queries);
    counts.resize(queries);
    keys.resize(pages);
    values.resize(pages);
    query.resize(std::size_t{queries} * (a.is_latent() ? a.kv_width() : a.head_dim));
    part.resize(std::size_t{queries} * (a.is_latent() ? a.latent.kv_rank : a.head_dim));
    if (!a.is_latent()) return;
    block.resize(std::size_t{kernels::kBlockColumns} * a.latent.kv_rank);
    if (a.indexer.heads == 0) return;
    unseen.resize(ctx);
    index_scores.resize(stride);
    order.resize(ctx);
  }
  /// Makes room for the naive form.
  void make_naive(const model::LatentSpec& l) {
    matrix_row.resize(std::max(l.kv_rank, l.nope));
    latents.resize(std::size_t{kernels::kPageTokens} * l.kv_rank);
    made.resize(std::size_t{kernels::kPageTokens} * l.nope);
  }
};

}  // namespace wisp::compute
