#pragma once
#include <sys/resource.h>

#include <cstdint>
#include <string>

namespace wisp::loader {

/// How much may be locked, and how `bytes` in all could be: for the messages of a kernel's refusal.
inline std::string memlock_advice(std::uint64_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string now =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
  const std::uint64_t kib = (bytes + 1023) / 1024;
  return "RLIMIT_MEMLOCK is " + now + ", " + std::to_string(kib * 1024) + " are needed: `ulimit -l " +
         std::to_string(kib) + "`, LimitMEMLOCK=" + std::to_string(kib * 1024) +
         " in a systemd unit, or CAP_IPC_LOCK";
}

}  // namespace wisp::loader
