#pragma once

namespace wisp {

/// One turn of a wait that burns its core, gently to a neighbour on the same one.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace wisp
