#pragma once
#include <cstdint>

namespace wisp::testing {

/// How often `operator new`, in any of its forms, has been asked for memory, by all threads. A program that
/// uses it is linked with counted_new.cpp.
std::uint64_t allocations();

}  // namespace wisp::testing
