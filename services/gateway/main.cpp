#include "services/gateway/gateway_stage.hpp"

int main(int argc, char** argv) {
  return wisp::service::host_main(argc, argv, "wisp-gateway",
                                  {{wisp::shm::StageId::kGateway, wisp::gateway::make_gateway}});
}
