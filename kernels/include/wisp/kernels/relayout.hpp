#pragma once
#include <cstdint>
#include <span>

#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Copies a row-major matrix [rows, cols] (f32, bf16 or f16 as stored) into the tile layout.
/// `out` has codes_bytes(); padding rows and columns become zero.
void tile_plain(WeightFormat f, std::uint32_t rows, std::uint32_t cols, const void* in, std::uint8_t* out);

/// Copies nibbles [rows, ceil(cols/8)] words (first column in the lowest nibble: compressed-tensors int4, the
/// bytes of MXFP4 blocks) into the tile layout; padding holds the code of zero.
void tile_nibbles(WeightFormat f, std::uint32_t rows, std::uint32_t cols, const std::uint32_t* packed,
                  std::uint8_t* out);

/// Copies row-major scales [rows, groups] of scale_bytes(f) each into the scale plane; padding rows hold 0.
void tile_scales(WeightFormat f, std::uint32_t rows, std::uint32_t groups, const void* in, std::uint8_t* out);

}  // namespace wisp::kernels
