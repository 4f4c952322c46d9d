#include "services/compute/compute_stage.hpp"

int main(int argc, char** argv) {
  return wisp::service::host_main(argc, argv, "wisp-compute",
                                  {{wisp::shm::StageId::kCompute, wisp::compute::make_compute}});
}
