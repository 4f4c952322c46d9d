#include "service/crash_point.hpp"

#include <signal.h>
#include <unistd.h>

namespace wisp::service {

std::optional<CrashPoint> crash_point_from(std::string_view name) {
  for (std::uint32_t i = 0; i < kCrashPointNames.size(); ++i)
    if (kCrashPointNames[i] == name) return static_cast<CrashPoint>(i);
  return std::nullopt;
}

namespace detail {
thread_local Armed* armed = nullptr;

void hit(Armed* a) {
  const std::uint32_t left = a->countdown.load(std::memory_order_relaxed);
  if (left > 1) {
    a->countdown.store(left - 1, std::memory_order_relaxed);
    return;
  }
  a->point.store(0, std::memory_order_relaxed);
  ::kill(::getpid(), static_cast<int>(a->signal.load(std::memory_order_relaxed)));
}
}  // namespace detail

}  // namespace wisp::service
