#include "service/stage.hpp"

/// Stages without a model: enough to be started, killed and watched. The step gate is their only input.
namespace {

using namespace wisp;
using shm::StageId;

class Toy final : public service::Stage {
 public:
  explicit Toy(service::StageContext& ctx) : ctx_(ctx) {}

  bool poll() override {
    service::crash_point(service::CrashPoint::kSampled);
    if (!has_work()) return false;
    const std::uint64_t gate = ctx_.life().gate.load();
    // The router "commits" as many tokens as the gate lets pass and leaves a mark in the journal.
    ctx_.at().journal->next_order.store(gate);
    ctx_.desk()->set(stats::Counter::kTokensCommitted, gate);
    return true;
  }

  bool has_work() override {
    if (ctx_.id() != StageId::kRouter) return false;
    const std::uint64_t gate = ctx_.life().gate.load();
    return gate != ~0ULL && gate != ctx_.desk()->get(stats::Counter::kTokensCommitted);
  }

 private:
  service::StageContext& ctx_;
};

Result<std::unique_ptr<service::Stage>> make(service::StageContext& ctx) {
  if (ctx.plan().options.io == "refuse" && ctx.id() == StageId::kCompute)
    return invalid("the toy refuses: take another --io");
  return std::unique_ptr<service::Stage>(new Toy(ctx));
}

}  // namespace

int main(int argc, char** argv) {
  return wisp::service::host_main(argc, argv, "toy_stage",
                                  {{StageId::kGateway, make},
                                   {StageId::kRouter, make},
                                   {StageId::kLoader, make},
                                   {StageId::kCompute, make},
                                   {StageId::kSpeculator, make}});
}
