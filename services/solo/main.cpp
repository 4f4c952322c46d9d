#include "service/stage.hpp"
#include "services/compute/compute_stage.hpp"
#include "services/gateway/gateway_stage.hpp"
#include "services/loader/loader_stage.hpp"
#include "services/router/router_stage.hpp"
#include "services/speculator/speculator_stage.hpp"

int main(int argc, char** argv) {
  using wisp::shm::StageId;
  return wisp::service::host_main(argc, argv, "wisp-solo",
                                  {{StageId::kGateway, wisp::gateway::make_gateway},
                                   {StageId::kRouter, wisp::router::make_router},
                                   {StageId::kLoader, wisp::loader::make_loader},
                                   {StageId::kCompute, wisp::compute::make_compute},
                                   {StageId::kSpeculator, wisp::speculator::make_speculator}});
}
