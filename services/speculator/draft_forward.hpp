#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/draft_plan.hpp"
#include "services/compute/forward.hpp"
#include "services/speculator/place_pages.hpp"
#include "services/speculator/resident_experts.hpp"

namespace wisp::speculator {

/// The forward pass of a draft: one sequence at a time, on the calling thread alone, every expert in memory,
/// KV rows by place. Nothing is allocated after the constructor.
class DraftForward {
 public:
  /// `spec` and `weights` outlive this object, as does the memory: `experts` [sizes.expert_bytes], `kv`
  /// [sizes.kv_bytes()].
  DraftForward(const model::ModelSpec& spec, const compute::Weights& weights, const plan::DraftPlan& sizes,
               const std::byte* experts, std::byte* kv, kernels::KvFormat format, bool fast);

  /// Computes rows [at, at + ids.size()) of `place`, whose pages reach so far; what stood there from `at` on
  /// stands no more, and the caller says what does. `hidden`: of a draft head, [ids, hidden]. Logits of the
  /// last row where asked. False where it failed.
  bool run(std::uint32_t place, std::uint32_t at, std::span<const std::uint32_t> ids,
           std::span<const float> hidden, bool logits);
  /// Of the last row of the last run, which had them: [vocab].
  std::span<const float> logits() const { return forward_.logits(0); }
  /// The row that they were taken from: [hidden].
  std::span<const float> normed() const { return forward_.normed(0); }
  /// The likeliest token below `vocab`.
  std::uint32_t likeliest(std::uint32_t vocab) const;

  PlacePages& places() { return places_; }
  /// Rows that were computed: what drafting costs, as a number.
  std::uint64_t rows() const { return rows_; }

 private:
  compute::ThreadPool pool_{1, false};
  ResidentExperts experts_;
  compute::Forward forward_;
  PlacePages places_;
  std::vector<compute::Sequence> one_{1};
  std::uint64_t rows_ = 0;
};

}  // namespace wisp::speculator
