#include "services/speculator/speculator_stage.hpp"

int main(int argc, char** argv) {
  return wisp::service::host_main(argc, argv, "wisp-speculator",
                                  {{wisp::shm::StageId::kSpeculator, wisp::speculator::make_speculator}});
}
