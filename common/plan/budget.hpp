#pragma once
#include "plan/run_plan.hpp"

/// What a laid-out run costs, term by term.
namespace wisp::plan {

/// Fills every byte term of `plan` from its counts (slots, ctx, prompt_chunk, parallel, threads, ...) and the
/// model's shape. Grows with each count, so that a search over one of them is sound.
void fill_terms(RunPlan& plan, const model::ModelSpec& spec);

/// Working memory of a forward pass: buffers for the rows of one step (prompt_chunk + parallel), scores,
/// logits, rotation tables. Looks at ctx, kv_pages, threads, profile and naive_prefill besides.
std::uint64_t scratch_bytes(const RunPlan& plan, const model::ModelSpec& spec);

/// What the command itself has of the budget: it is there before the plan is.
std::uint64_t command_bytes();

/// Bytes that are taken as regions before the first token: they must be there at once.
std::uint64_t region_bytes(const RunPlan& plan);

}  // namespace wisp::plan
