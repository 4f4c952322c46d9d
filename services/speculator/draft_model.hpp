#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/manifest.hpp"
#include "plan/draft_plan.hpp"
#include "plan/run_plan.hpp"
#include "services/speculator/draft_forward.hpp"
#include "services/speculator/private_memory.hpp"
#include "services/speculator/source.hpp"

namespace wisp::speculator {

/// Drafts with a small model: its greedy continuation of what is there. It lies whole in private memory
/// (plan::lay_out_draft says how much) and computes on the calling thread alone. Nothing is allocated after
/// open().
///
/// It keeps its KV rows as PlacePages does.
class DraftModel final : public Source {
 public:
  /// The draft model of plan.options.draft, in that model's own profile (a draft changes no byte of an
  /// answer) and with KV rows as the run keeps them. `vocab`: the target's; no token beyond it is proposed.
  /// Errors, all naming the option: those of model::load_manifest, kInvalid where the folder has changed
  /// since the run was planned, kExhausted where memory is not there, kIo, kCorrupt.
  static Result<std::unique_ptr<DraftModel>> open(const plan::RunPlan& plan, std::uint32_t vocab);

  /// As Source::propose. Computes at most sizes().rows rows of what it has not seen yet, and one more for
  /// each further token. 0 while that does not suffice (has_more() says so), where the ids are longer than
  /// the draft's context, or one of them is none of its vocabulary. With an empty `out` it only catches up,
  /// up to the last id.
  std::uint32_t propose(std::uint32_t place, std::uint64_t request, std::span<const std::uint32_t> ids,
                        std::span<std::uint32_t> out) override;
  void forget(std::uint32_t place) override;

  /// Whether the last propose() of this place ended before it had caught up: the same call goes on.
  bool has_more(std::uint32_t place) const override { return behind_[place]; }

  const model::ModelSpec& spec() const { return manifest_.spec; }
  const plan::DraftPlan& sizes() const { return sizes_; }
  /// Rows that were computed, of prompts and drafts together: what drafting costs, as a number.
  std::uint64_t rows() const { return forward_->rows(); }

 private:
  DraftModel(model::Manifest manifest, const plan::DraftPlan& sizes, std::uint32_t vocab)
      : manifest_(std::move(manifest)), sizes_(sizes), vocab_(vocab) {}
  static Result<std::unique_ptr<DraftModel>> open_in_memory(const plan::RunPlan& plan, std::uint32_t vocab);
  void set_up(const plan::RunPlan& plan);

  /// DraftForward::run, of rows that stand.
  bool run(std::uint32_t place, std::uint32_t at, std::span<const std::uint32_t> ids, bool logits);

  model::Manifest manifest_;  ///< spec and name; the rest is dropped once everything is read
  plan::DraftPlan sizes_;
  std::uint32_t vocab_;   ///< ids below this may be proposed
  PrivateMemory memory_;  ///< dense part, experts, KV pages
  compute::Weights weights_;
  std::optional<DraftForward> forward_;
  std::vector<bool> behind_;  ///< [places] whether has_more()
};

}  // namespace wisp::speculator
