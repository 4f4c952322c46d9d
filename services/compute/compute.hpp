#pragma once
#include <memory>
#include <optional>

#include "services/compute/compute_stage.hpp"
#include "services/compute/expert_client.hpp"
#include "services/compute/forward.hpp"
#include "services/compute/sampler.hpp"

namespace wisp::compute {

/// Runs the steps of edge 3. Keeps nothing between steps but KV rows: a step that is run twice writes the
/// same bytes and publishes a result that the router drops by its key.
class ComputeStage final : public service::Stage {
 public:
  ComputeStage(service::StageContext& ctx, model::Manifest manifest);

  bool poll() override;
  bool has_work() override;
  void sleep(service::StageContext& ctx) override;

 private:
  struct Plan;  // a step as decoded from the arena
  /// Decodes and checks a step. Empty where the message is malformed (it is then dropped and said).
  std::optional<Plan> decode(const ring::Descriptor& d) const;
  /// Waits for the dense region, then binds weights: the first step pays for it.
  void make_ready();
  void run_step(const Plan& plan);
  void publish_result(const Plan& plan, bool completed, std::span<const Sequence> sequences);
  std::string write_logits(std::uint64_t request, std::uint32_t row, std::span<const float> logits) const;
  bool all_cancelled(const Plan& plan) const;

  service::StageContext& ctx_;
  model::Manifest manifest_;
  const shm::RouterBoard* router_board_;
  ring::Consumer from_router_;
  ring::Producer to_router_;
  ExpertClient experts_;
  ThreadPool pool_;
  Weights weights_;
  std::unique_ptr<Forward> forward_;
  Sampler sampler_;
};

}  // namespace wisp::compute
