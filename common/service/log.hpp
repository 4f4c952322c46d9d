#pragma once
#include <cstdint>
#include <string>

#include "shm/life.hpp"

/// Logging of one process. Set up after exec, so that no logger is ever shared with a parent.
namespace wisp::service {

/// Makes the default logger: <run_dir>/log/<program>.<epoch>.log, warnings to standard error too. Each line
/// carries engine time, program and epoch. Without a run directory, or where the file cannot be made,
/// standard error alone. `life` (may be nullptr) must outlive the logger.
void set_up_log(const std::string& run_dir, const std::string& program, std::uint32_t epoch,
                const std::string& level, const shm::Life* life);
/// "trace", "debug", "info", "warn", "error"; anything else is left unheeded with a warning.
void set_log_level(const std::string& level);

/// Tells the launcher through `control` that `stage` cannot run. Failures are ignored: the exit code says it
/// too.
void send_failure(int control, shm::StageId stage, const std::string& why);

}  // namespace wisp::service
