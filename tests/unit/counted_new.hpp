#pragma once
#include <cstdint>

namespace wisp::testing {

/// Counts what this thread takes from `operator new` while it lives. A program that uses it is linked with
/// counted_new.cpp.
class CountedNew {
 public:
  CountedNew();
  ~CountedNew();
  CountedNew(const CountedNew&) = delete;
  CountedNew& operator=(const CountedNew&) = delete;
  std::uint64_t so_far() const;
};

}  // namespace wisp::testing
