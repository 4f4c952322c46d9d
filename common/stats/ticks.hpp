#pragma once
#include <cstdint>
#include <ctime>

namespace wisp::stats {

/// A clock for spans of microseconds: some ten nanoseconds to read, no system call, of a unit of its own.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t t;
  asm volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#else
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000ULL + static_cast<std::uint64_t>(t.tv_nsec);
#endif
}

}  // namespace wisp::stats
