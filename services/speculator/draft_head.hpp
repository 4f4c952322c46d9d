#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "model/manifest.hpp"
#include "plan/draft_plan.hpp"
#include "plan/run_plan.hpp"
#include "services/speculator/draft_forward.hpp"
#include "services/speculator/private_memory.hpp"

namespace wisp::speculator {

/// Drafts with the layer that a model brings for it (MTP; model/draft_head.hpp has the formula): row p, from
/// the model's own row p and token p + 1, gives token p + 2, and a chain goes on with its own last row in
/// place of the model's. All of it lies in private memory, experts included (plan::lay_out_draft_head says
/// how much), but for embedding and output matrix where the caller has them; it computes on the calling
/// thread alone. Nothing is allocated after open().
///
/// It keeps KV rows as PlacePages does, of rows that come from the model's own alone: those of a chain are
/// computed anew once the model has computed them.
class DraftHead {
 public:
  /// The head of the model that the run is of, in the run's profile and with KV rows as it keeps them.
  /// `dense`: where that model's dense part lies, whole and for as long as this object lives; null =
  /// embedding and output matrix are read into private memory. Errors: those of model::load_manifest,
  /// kNotFound where the model has no head, kExhausted where memory is not there, kIo, kCorrupt.
  static Result<std::unique_ptr<DraftHead>> open(const plan::RunPlan& plan, const std::byte* dense = nullptr);

  /// From which position on propose() needs rows of the model, about the sequence `ids` in `place`: what
  /// stands of it ends there. ids.size() - 2 at the most, since the last row is what a proposal begins with.
  std::uint32_t wants(std::uint32_t place, std::span<const std::uint32_t> ids);

  /// Guesses up to out.size() tokens that follow `ids` of the sequence in `place`. `hidden`: rows of the
  /// model behind its last norm at positions [first, first + hidden.size() / hidden of the spec) of that
  /// sequence. Computes at most sizes().rows rows of what it has not seen yet, and one more for each further
  /// token. Returns how many it wrote. 0 while that does not suffice (has_more() says so), where `hidden`
  /// begins behind wants() or ends before the last row but one, where there are fewer than two ids or more
  /// than the context has, or one of them is none of the vocabulary. With an empty `out` it only catches up.
  std::uint32_t propose(std::uint32_t place, std::span<const std::uint32_t> ids, std::uint32_t first,
                        std::span<const float> hidden, std::span<std::uint32_t> out);
  /// The sequence in `place` has ended.
  void forget(std::uint32_t place);

  /// Whether the last propose() of this place ended before it had used all rows: the same call goes on.
  bool has_more(std::uint32_t place) const { return behind_[place]; }
  /// Logits that the last token of the last proposal was taken from: [vocab].
  std::span<const float> logits() const { return forward_->logits(); }

  const model::ModelSpec& spec() const { return manifest_.spec; }
  const plan::DraftPlan& sizes() const { return sizes_; }
  /// Rows that were computed: what drafting costs, as a number.
  std::uint64_t rows() const { return forward_->rows(); }

 private:
  DraftHead(model::Manifest manifest, const plan::DraftPlan& sizes)
      : manifest_(std::move(manifest)), sizes_(sizes) {}
  static Result<std::unique_ptr<DraftHead>> open_in_memory(const plan::RunPlan& plan, const std::byte* dense);
  Status bind(const model::Manifest& model, const plan::RunPlan& plan, const std::byte* dense);
  void set_up(const plan::RunPlan& plan);

  /// Rows of `place` that stand for the beginning of `ids`: row p is of ids up to p + 1.
  std::uint32_t standing(std::uint32_t place, std::span<const std::uint32_t> ids);

  model::Manifest manifest_;  ///< the head's: spec; the rest is dropped once everything is read
  plan::DraftPlan sizes_;
  PrivateMemory memory_;  ///< dense part, experts, embedding and output matrix, KV pages
  compute::Weights weights_;
  std::optional<DraftForward> forward_;  ///< of its places, id p + 1 stands for row p
  std::vector<std::uint32_t> first_;     ///< [places] id 0 of the rows that stand
  std::vector<bool> behind_;             ///< [places] whether has_more()
  std::vector<float> chain_;             ///< [hidden] what the next row of a chain is fed with
};

}  // namespace wisp::speculator
