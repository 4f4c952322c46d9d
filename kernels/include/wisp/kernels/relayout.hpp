#pragma once
#include <cstdint>
#include <span>

#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Copies a row-major matrix [rows, cols] (f32, bf16 or f16 as stored) into the tile layout.
/// `out` has codes_bytes(); padding rows and columns become zero.
void tile_plain(WeightFormat f, std::uint32_t rows, std::uint32_t cols, const void* in, std::uint8_t* out);

/// Copies compressed-tensors `pack-quantized` int4 words [rows, ceil(cols/8)] (first column in the lowest
/// nibble) into the tile layout; padding rows hold code 8 (zero).
void tile_int4(std::uint32_t rows, std::uint32_t cols, const std::uint32_t* packed, std::uint8_t* out);

/// Copies row-major bf16 scales [rows, cols/group] into the scale plane; padding rows hold 0.
void tile_scales(std::uint32_t rows, std::uint32_t groups, const std::uint16_t* in, std::uint16_t* out);

}  // namespace wisp::kernels
