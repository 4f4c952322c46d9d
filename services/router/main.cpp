#include "services/router/router_stage.hpp"

int main(int argc, char** argv) {
  return wisp::service::host_main(argc, argv, "wisp-router",
                                  {{wisp::shm::StageId::kRouter, wisp::router::make_router}});
}
