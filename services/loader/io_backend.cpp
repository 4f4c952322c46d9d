#include "services/loader/io_backend.hpp"

#include <spdlog/spdlog.h>

namespace wisp::loader {

Result<std::unique_ptr<IoBackend>> make_backend(BackendSetup setup) {
  const std::string io = setup.io.empty() ? "auto" : setup.io;
  if (io == "ghost") return make_ghost_backend(setup);
  if (io == "pread") {
    spdlog::info("reads go through threads with pread, as asked for (--io pread)");
    return make_pread_backend(setup);
  }
  if (io != "auto" && io != "uring")
    return invalid("I/O backend '" + io + "' is unknown: --io takes auto, uring or pread");
  auto uring = make_uring_backend(setup);
  if (uring.ok()) return uring;
  if (io == "uring")
    return unavailable(uring.error().text + "; give --io auto or --io pread to read through threads instead");
  spdlog::warn("{}; reads go through threads with pread instead", uring.error().text);
  return make_pread_backend(setup);
}

}  // namespace wisp::loader
