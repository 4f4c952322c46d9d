#pragma once
#include <cstddef>
#include <cstdint>

namespace wisp::bench {

/// What the machine can do at best, as plain loops over its widest instructions, whatever table of kernels is
/// chosen: what kernels are held against.
struct Roofs {
  const char* isa;  ///< of the loops
  /// Sums `bytes` (a multiple of 512) at `at` (aligned to 64), fetching `ahead` bytes beyond. Memory behind
  /// the end is fetched and not read.
  std::uint64_t (*read_sum)(const std::uint8_t* at, std::size_t bytes, std::size_t ahead);
  /// Multiply-adds of bytes in registers alone, `steps` rounds; gives their number.
  std::uint64_t (*int8_macs)(std::uint64_t steps);
  /// The same of f32.
  std::uint64_t (*f32_macs)(std::uint64_t steps);
};

/// The loops for this CPU.
const Roofs& machine_roofs();

}  // namespace wisp::bench
