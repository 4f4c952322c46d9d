#pragma once
#include <cstdint>
#include <span>

#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Copies a row-major matrix [rows, cols], rows of row_bytes() each, into the tile layout: plain numbers as
/// stored, codes of a byte, or nibbles in dwords with the first column lowest (compressed-tensors int4, the
/// bytes of MXFP4 blocks). `out` has codes_bytes(). Padding rows and columns become the code 0 (kInt4: 8).
void tile_codes(WeightFormat f, std::uint32_t rows, std::uint32_t cols, const void* in, std::uint8_t* out);

/// Copies row-major scales [scale_rows(f, rows), groups] into the scale plane; padding rows hold 0.
void tile_scales(WeightFormat f, std::uint32_t rows, std::uint32_t groups, const void* in, std::uint8_t* out);

}  // namespace wisp::kernels
