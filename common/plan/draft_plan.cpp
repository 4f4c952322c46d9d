#include "plan/draft_plan.hpp"

#include <algorithm>

#include "model/draft_head.hpp"
#include "plan/budget.hpp"
#include "ring/messages.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::plan {

namespace {

std::uint32_t pages_of(std::uint32_t positions) {
  return (positions + kernels::kPageTokens - 1) / kernels::kPageTokens;
}

/// Rows whose products take a core some tens of milliseconds: whoever waits for a draft that catches up waits
/// for one piece. Never fewer than a proposal of full length computes, nor more than repay the larger
/// buffers.
std::uint32_t rows_of(const model::Manifest& m) {
  constexpr std::uint64_t kMultiplyAdds = 1u << 30;
  constexpr std::uint64_t kFewest = ring::kMostDrafted + 1, kMost = 64;
  const model::ModelSpec& s = m.spec;
  std::uint64_t row = std::uint64_t{s.moe_layers()} * s.router.top_k * 3 * s.hidden * s.moe_width;
  for (const auto& [name, t] : m.dense)
    if (t.tiled && (name.starts_with("layers.") || name == "join")) row += std::uint64_t{t.rows} * t.cols;
  return static_cast<std::uint32_t>(
      std::clamp(kMultiplyAdds / std::max<std::uint64_t>(row, 1), kFewest, kMost));
}

/// Vectors of the dense part as f32 beside it, and what is kept of each expert while they are read.
std::uint64_t bookkeeping(const model::Manifest& m) {
  std::uint64_t bytes = std::uint64_t{m.spec.expert_count()} * sizeof(model::ExpertExtent);
  for (const auto& [name, t] : m.dense)
    if (!t.tiled) bytes += std::uint64_t{t.rows} * t.cols * 4;
  return bytes;
}

DraftPlan lay_out(const model::Manifest& draft, const RunPlan& run, const std::string& profile) {
  DraftPlan d;
  d.ctx = std::min(run.ctx, draft.spec.max_positions);
  d.rows = rows_of(draft);
  d.places = run.records;
  const std::uint32_t longest = pages_of(d.ctx);
  static_assert(ring::kLongestDraft <= kernels::kPageTokens, "a proposal reaches at most one page further");
  d.kv_pages = static_cast<std::uint32_t>(std::min<std::uint64_t>(std::uint64_t{run.kv_pages} + run.parallel,
                                                                  std::uint64_t{longest} * run.parallel));
  d.kv_page_bytes = draft.spec.kv_page_bytes(run.kv_format);
  d.dense_bytes = draft.dense_bytes;
  d.expert_bytes = draft.spec.expert_count() * draft.spec.expert.stride;

  RunPlan work;
  work.ctx = d.ctx;
  work.kv_pages = longest;
  work.prompt_chunk = d.rows;
  work.threads = 1;
  work.profile = profile;
  // A page's ids and its place among the free ones; each place's list of pages.
  const std::uint64_t lists = std::uint64_t{d.kv_pages} * (kernels::kPageTokens + 1) * 4 +
                              std::uint64_t{d.places} * (std::uint64_t{longest} * 4 + 64);
  d.scratch_bytes = scratch_bytes(work, draft.spec) + (lists + bookkeeping(draft) + 4095) / 4096 * 4096;
  return d;
}

}  // namespace

DraftPlan lay_out_draft(const model::Manifest& draft, const RunPlan& run) {
  return lay_out(draft, run, draft.profile);
}

DraftPlan lay_out_draft_head(const model::Manifest& model, const RunPlan& run, bool tables) {
  DraftPlan d = lay_out(model.draft_head.front(), run, run.profile);
  if (tables) d.table_bytes = model::draft_head_tables(model).dense_bytes;
  // The rows that it is fed with, one that a chain is fed with, and the last norm as f32; the model's
  // manifest while it is read.
  d.scratch_bytes += (d.rows + std::uint64_t{2}) * model.spec.hidden * 4 + bookkeeping(model);
  return d;
}

}  // namespace wisp::plan
