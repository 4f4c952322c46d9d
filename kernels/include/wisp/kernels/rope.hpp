#pragma once
#include <cstdint>

namespace wisp::kernels {

/// Cosine and sine tables for rope: [positions, width/2] each, computed in double and rounded once.
struct RopeTable {
  std::uint32_t width = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};
/// Rotates the first `width` entries of x [head_dim] for row `pos` of the table, halves or interleaved pairs:
/// y_a = fl(fl(x_a c) - fl(x_b s)), y_b = fl(fl(x_b c) + fl(x_a s)).
void apply_rope(float* x, const RopeTable& table, std::uint32_t pos, bool interleaved);

}  // namespace wisp::kernels
