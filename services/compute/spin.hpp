#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace wisp::compute {

/// One turn of a wait that burns its core, gently to a neighbour on the same one.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// Pauses that fit into `seconds`: one takes from 10 to 150 cycles, by the kind of core.
inline std::uint32_t pauses_in(double seconds) {
  constexpr int kPauses = 256;
  double shortest = 1.0;  // of a few: others may be interrupted
  for (int i = 0; i < 8; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int p = 0; p < kPauses; ++p) pause();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    shortest = std::min(shortest, took.count());
  }
  return static_cast<std::uint32_t>(seconds / std::max(shortest / kPauses, 1e-9));
}

}  // namespace wisp::compute
