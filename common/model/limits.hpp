#pragma once
#include <cstdint>

namespace wisp::model {

// Bounds on what a checkpoint or a manifest may claim. They lie far above every published model and keep each
// product of two or three of them inside 64 bits, so that no size computed from hostile numbers wraps around.

inline constexpr std::uint32_t kMaxLayers = 1024;
inline constexpr std::uint32_t kMaxWidth = 1u << 17;  ///< hidden, expert and dense widths
inline constexpr std::uint32_t kMaxHeads = 1024;
inline constexpr std::uint32_t kMaxHeadDim = 1024;
inline constexpr std::uint32_t kMaxVocab = 1u << 23;
inline constexpr std::uint32_t kMaxExperts = 1u << 14;  ///< per layer; an expert's key has 16 bits for it
inline constexpr std::uint32_t kMaxExpertsInAll = 1u << 18;  ///< their tables stay small
inline constexpr std::uint32_t kMaxPositions = 1u << 30;
inline constexpr std::uint32_t kMaxStopIds = 256;
inline constexpr std::uint32_t kMaxGroup = 1u << 24;  ///< columns that share a scale

/// The unit of direct reads: data sections and expert extents begin and end on it.
inline constexpr std::uint64_t kExtentAlign = 4096;
/// The alignment of every plane and dense tensor: one cache line, one vector of 16 dwords.
inline constexpr std::uint64_t kPlaneAlign = 64;

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace wisp::model
