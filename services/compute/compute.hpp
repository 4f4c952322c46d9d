#pragma once
#include <memory>
#include <vector>

#include "services/compute/compute_stage.hpp"
#include "services/compute/expert_client.hpp"
#include "services/compute/forward.hpp"
#include "services/compute/logprobs.hpp"
#include "services/compute/mapped_memory.hpp"
#include "services/compute/penalties.hpp"
#include "services/compute/sampler.hpp"
#include "services/compute/step_times.hpp"
#include "shm/journal_reader.hpp"

namespace wisp::compute {

/// Runs the steps of edge 3. Keeps nothing between steps but KV rows: a step that is run twice writes the
/// same bytes and publishes a result that the router drops by its key.
class ComputeStage final : public service::Stage {
 public:
  ComputeStage(service::StageContext& ctx, model::Manifest manifest);

  bool poll() override;
  bool has_work() override;
  /// Looks for a while before it parks: between two steps of decode the router takes less time than a
  /// wake-up.
  void sleep(service::StageContext& ctx) override;

 private:
  /// A step as decoded from the arena. One object serves all steps, so that none allocates.
  struct Plan {
    ring::StepHeader header;
    struct Part {
      ring::StepRequest request;
      std::span<const std::uint32_t> ids;
      std::span<const std::uint32_t> pages;
    };
    std::vector<Part> parts;
  };
  /// Decodes and checks a step. False where the message is malformed (it is then dropped and said).
  bool decode(const ring::Descriptor& d, Plan& plan) const;
  /// Waits for the dense region, then binds weights: the first step pays for it.
  void make_ready();
  void run_step(const Plan& plan);
  void name_rows(const Plan& plan);
  void publish_result(const Plan& plan, bool completed);
  /// Draws what follows the rows of part i, which is valid_[place], into `row` as far as its drafts stand.
  /// The error's text, or none.
  std::string draw(std::size_t i, std::size_t place, ring::StepResultRow& row);
  /// Counts the text before the first token that `q` draws. False where its record is another request's now.
  bool count_text(const ring::StepRequest& q);
  std::string write_logits(std::uint64_t request, std::uint32_t row, std::span<const float> logits) const;
  bool all_cancelled(const Plan& plan) const;

  service::StageContext& ctx_;
  model::Manifest manifest_;
  const shm::RouterBoard* router_board_;
  ring::Consumer from_router_;
  ring::Producer to_router_;
  ExpertClient experts_;
  MappedMemory memory_;
  ThreadPool pool_;
  bool looks_;  ///< for the next step before it parks; not where the router has no core beside
  Weights weights_;
  std::unique_ptr<Forward> forward_;
  Plan plan_;
  StepTimes times_;
  std::vector<Sequence> sequences_;         ///< [parts]
  std::vector<Sequence> valid_;             ///< those that can be computed
  std::vector<std::uint32_t> accepted_;     ///< [valid_] drafts that stand
  std::vector<std::byte> result_;           ///< the message
  std::vector<ring::TouchRow> named_rows_;  ///< of the step, where a trace is recorded
  shm::JournalReader journal_;              ///< of the texts that penalties ask for
  Penalties penalties_;
  Sampler sampler_;
  Logprobs logprobs_;
  std::vector<std::uint32_t> told_;  ///< of the tokens that the step drew, in the order of the rows
};

}  // namespace wisp::compute
