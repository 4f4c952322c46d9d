#pragma once
#include "plan/run_plan.hpp"

namespace wisp::plan {

/// What a draft model, or a model's own draft head, holds beside a run: counts and bytes.
struct DraftPlan {
  std::uint32_t ctx = 0;       ///< longest sequence that it follows, tokens
  std::uint32_t rows = 0;      ///< of one pass: a long prompt is caught up in pieces of this length
  std::uint32_t places = 0;    ///< sequences that it may be asked about: the run's records
  std::uint32_t kv_pages = 0;  ///< of all places together
  std::uint64_t kv_page_bytes = 0;
  std::uint64_t dense_bytes = 0;
  std::uint64_t expert_bytes = 0;  ///< all of them: a draft reads nothing while it works
  std::uint64_t table_bytes =
      0;  ///< of a draft head: embedding and output matrix, its model's, read once more
  std::uint64_t scratch_bytes = 0;  ///< of one thread, and the lists of pages and ids

  std::uint64_t kv_bytes() const { return std::uint64_t{kv_pages} * kv_page_bytes; }
  std::uint64_t total() const {
    return dense_bytes + expert_bytes + table_bytes + kv_bytes() + scratch_bytes;
  }
};

/// Lays out `draft` beside a run with these counts (ctx, kv_pages, kv_format, parallel, records).
///
/// Its KV pages are one pool, not a context for each place: sequences that live at a time lie in the run's
/// own pool of kv_pages, and a proposal reaches at most one page further; `parallel` of them live at a time.
DraftPlan lay_out_draft(const model::Manifest& draft, const RunPlan& run);

/// Lays out the draft head of `model`, which has one, beside that model's run: the same, in the run's
/// profile. `tables`: whether it holds embedding and output matrix of its own.
DraftPlan lay_out_draft_head(const model::Manifest& model, const RunPlan& run, bool tables);

}  // namespace wisp::plan
