#pragma once
#include <cstddef>
#include <cstdint>

/// Functions with one definition for every table: no libm, no contraction (kernels/CANON.md, "Functions").
namespace wisp::kernels {

/// e^x by range reduction and a polynomial of its own; the same bits on every CPU. +-inf and NaN as in IEEE.
float canonical_exp(float x);
/// 1 / (1 + e^-x), by canonical_exp.
float canonical_sigmoid(float x);
/// x / (1 + e^-x), by canonical_exp.
float canonical_silu(float x);
/// The canonical reduction: 16 interleaved lanes (i mod 16), then the tree +8, +4, +2, +1.
float canonical_sum(const float* x, std::size_t n);

/// x = weight * ((x - mean) * rsqrt(variance + eps)) + bias, n elements, in place; both sums are "reductions"
/// of CANON.md.
void layer_norm(float* x, const float* weight, const float* bias, float eps, std::uint32_t n);

/// gate[i] = (u + 1) g sigmoid(alpha g) with g = min(gate[i], limit), u = up[i] clamped to +-limit.
void clamped_glu(float* gate, const float* up, std::size_t n, float limit, float alpha);

}  // namespace wisp::kernels
