#pragma once
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "base/function_ref.hpp"

namespace wisp::testing {

/// Page faults so far of `who`: RUSAGE_SELF or RUSAGE_THREAD.
inline std::uint64_t page_faults(int who = RUSAGE_SELF) {
  rusage u{};
  ::getrusage(who, &u);
  return static_cast<std::uint64_t>(u.ru_minflt + u.ru_majflt);
}

/// The fewest faults that any of several turns counts. Each is a child of its own, and touches for the first
/// time whatever the code touches for the first time. But the kernel moves pages (compaction) and takes them
/// back as well, whenever it likes, and then they come back by a fault: not in every turn. A turn may fail
/// expectations, as a test does. No other thread runs meanwhile.
inline std::uint64_t fewest_faults(FunctionRef<std::uint64_t()> turn) {
  constexpr int kTurns = 6;
  std::uint64_t fewest = ~std::uint64_t{0};
  for (int i = 0; i < kTurns && fewest > 0; ++i) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const std::uint64_t n = turn();
      const bool told = ::write(ends[1], &n, sizeof n) == sizeof n;
      std::fflush(nullptr);
      ::_exit(told && !::testing::Test::HasFailure() ? 0 : 1);
    }
    ::close(ends[1]);
    std::uint64_t n = 0;
    int status = -1;
    EXPECT_EQ(::read(ends[0], &n, sizeof n), static_cast<ssize_t>(sizeof n)) << "turn " << i;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "turn " << i << " failed";
    ::close(ends[0]);
    if (::testing::Test::HasFailure()) return ~std::uint64_t{0};
    fewest = std::min(fewest, n);
  }
  return fewest;
}

}  // namespace wisp::testing
