#include "launch/restart_policy.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

namespace wisp::launch {

namespace {
constexpr int kRefusesStatus = 125;
}  // namespace

RestartDecision RestartPolicy::on_death(bool progressed) {
  if (progressed) deaths_ = 0;
  ++deaths_;
  if (deaths_ >= limits_.deaths) return {true, 0};
  if (deaths_ == 1) return {false, 0};
  const std::uint32_t doublings = std::min<std::uint32_t>(deaths_ - 2, 32);
  return {false, std::min(limits_.first_ms << doublings, limits_.max_ms)};
}

DeathCause cause_of(int wait_status) {
  if (WIFEXITED(wait_status))
    return WEXITSTATUS(wait_status) == kRefusesStatus ? DeathCause::kRefuses : DeathCause::kClean;
  switch (WTERMSIG(wait_status)) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGABRT:
    case SIGFPE:
      return DeathCause::kDirty;
    default:
      return DeathCause::kClean;
  }
}

bool killed_from_outside(int wait_status) {
  return WIFSIGNALED(wait_status) && cause_of(wait_status) == DeathCause::kClean;
}

}  // namespace wisp::launch
