#pragma once
#include <cstdio>
#include <cstdlib>

/// Aborts when an invariant of our own is broken. Always on; never for input (input gets an Error).
#define WISP_CHECK(cond)                                                                \
  do {                                                                                  \
    if (!(cond)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                     \
    }                                                                                   \
  } while (false)
