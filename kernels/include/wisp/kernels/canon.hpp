#pragma once
#include <cstdint>

namespace wisp::kernels {

/// Version of the arithmetic in kernels/CANON.md; part of the profile hash. Raise it with any change of bits.
inline constexpr std::uint32_t kCanonVersion = 1;

/// Columns (or positions) in one chain of a product; cuts lie at absolute multiples.
inline constexpr std::uint32_t kBlockColumns = 512;
/// Columns in one inner chain of a coded weight; cuts lie at absolute multiples, whatever the scale's group.
inline constexpr std::uint32_t kGroupColumns = 32;
/// Interleaved lanes of a reduction.
inline constexpr std::uint32_t kSumLanes = 16;

}  // namespace wisp::kernels
