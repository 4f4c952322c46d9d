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
  std::vector<float> scores;                   ///< [heads at once, positions of whole pages] and a sink
  std::vector<const std::byte*> keys, values;  ///< [pages]

  // latent attention
  std::vector<float> query;           ///< [latent and rotated entries]
  std::vector<float> block;           ///< [positions of a block, kv_rank] latents by position
  std::vector<float> part;            ///< [kv_rank]
  std::vector<std::uint32_t> unseen;  ///< positions that the indexer left out

  // the indexer
  std::vector<float> index_scores, index_part;  ///< [positions]
  std::vector<std::uint32_t> order;             ///< [positions]

  // naive rows, empty until the first of them
  std::vector<float> matrix_row;     ///< [kv_rank or nope]
  std::vector<float> latents, made;  ///< [16, kv_rank], [16, nope]

  /// `heads`: whose scores are held at a time.
  AttentionScratch(const model::AttentionSpec& a, std::uint32_t ctx, std::uint32_t heads) {
    const std::size_t pages = (std::size_t{ctx} + kernels::kPageTokens - 1) / kernels::kPageTokens;
    const std::size_t positions = pages * kernels::kPageTokens;
    scores.resize(positions * heads + 1);
    keys.resize(pages);
    values.resize(pages);
    if (!a.is_latent()) return;
    query.resize(a.kv_width());
    block.resize(std::size_t{kernels::kBlockColumns} * a.latent.kv_rank);
    part.resize(a.latent.kv_rank);
    if (a.indexer.heads == 0) return;
    unseen.resize(ctx);
    index_scores.resize(positions);
    index_part.resize(positions);
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
