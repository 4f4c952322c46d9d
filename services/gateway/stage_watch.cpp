#include "services/gateway/stage_watch.hpp"

#include <sys/wait.h>

#include <cstring>

namespace wisp::gateway {

using shm::StageId;
using shm::StageLife;
using shm::StageState;

namespace {
/// The stages without which there is no token.
constexpr std::array kEngine{StageId::kRouter, StageId::kLoader, StageId::kCompute};

StageState state_of(const StageLife& s) {
  return static_cast<StageState>(s.state.load(std::memory_order_acquire));
}

std::string how(const StageLife& s) {
  const int status = static_cast<int>(s.last_status.load(std::memory_order_relaxed));
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "status " + std::to_string(WEXITSTATUS(status));
}
}  // namespace

StageWatch::StageWatch(const shm::Life& life) : life_(life) {
  for (StageId id : kEngine)
    seen_[shm::index(id)].epoch = life.stage[shm::index(id)].epoch.load(std::memory_order_acquire);
}

std::string StageWatch::changes() {
  std::string lines;
  for (StageId id : kEngine) {
    const StageLife& s = life_.stage[shm::index(id)];
    Seen& seen = seen_[shm::index(id)];
    const std::string name(shm::name_of(id));
    const std::uint32_t epoch = s.epoch.load(std::memory_order_acquire);
    const bool died = seen.epoch != 0 && life_.epoch_dead(id, seen.epoch);
    if (!seen.down && (died || (seen.epoch != 0 && epoch != seen.epoch))) {
      lines += ": wisp " + name + " stopped (" + how(s) + "), restarting\n\n";
      seen.down = true;
    }
    if (seen.epoch == 0) seen.epoch = epoch;
    if (seen.down && epoch != seen.epoch && state_of(s) == StageState::kReady) {
      lines += ": wisp " + name + " is back\n\n";
      seen = {epoch, false};
    }
  }
  return lines;
}

std::optional<std::string> StageWatch::given_up() const {
  for (StageId id : kEngine) {
    if (state_of(life_.stage[shm::index(id)]) != StageState::kGivenUp) continue;
    const std::string why(life_.give_up_reason, strnlen(life_.give_up_reason, sizeof life_.give_up_reason));
    return why.empty() ? std::string(shm::name_of(id)) + " cannot run; the log of the run says why" : why;
  }
  return std::nullopt;
}

std::optional<std::string> StageWatch::unready() const {
  if (auto why = given_up()) return why;
  if (life_.shutting_down.load(std::memory_order_acquire) != 0) return "the server is shutting down";
  for (StageId id : kEngine) {
    const StageLife& s = life_.stage[shm::index(id)];
    const StageState state = state_of(s);
    if (state == StageState::kReady) continue;
    const bool first = s.restarts.load(std::memory_order_relaxed) == 0;
    return std::string(shm::name_of(id)) + (state == StageState::kStopping ? " is stopping"
                                            : first                        ? " is starting"
                                                                           : " is restarting");
  }
  return std::nullopt;
}

}  // namespace wisp::gateway
