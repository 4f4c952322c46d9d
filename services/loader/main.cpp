#include "service/stage.hpp"
#include "services/loader/loader_stage.hpp"

int main(int argc, char** argv) {
  return wisp::service::host_main(argc, argv, "wisp-loader",
                                  {{wisp::shm::StageId::kLoader, wisp::loader::make_loader}});
}
