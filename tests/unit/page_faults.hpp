#pragma once
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include "base/function_ref.hpp"

namespace wisp::testing {

/// Page faults so far of `who`: RUSAGE_SELF or RUSAGE_THREAD.
inline std::uint64_t page_faults(int who = RUSAGE_SELF) {
  rusage u{};
  ::getrusage(who, &u);
  return static_cast<std::uint64_t>(u.ru_minflt + u.ru_majflt);
}

/// The fewest faults that any of several turns counts. A turn makes what it measures anew, and so touches
/// for the first time whatever the code touches for the first time. But the kernel moves pages (compaction)
/// and takes them back as well, whenever it likes, and then they come back by a fault: not in every turn.
inline std::uint64_t fewest_faults(FunctionRef<std::uint64_t()> turn) {
  constexpr int kTurns = 6;
  std::uint64_t fewest = ~std::uint64_t{0};
  for (int i = 0; i < kTurns && fewest > 0; ++i) {
    ::malloc_trim(0);  // what the turn before has touched is new again
    fewest = std::min(fewest, turn());
  }
  return fewest;
}

}  // namespace wisp::testing
