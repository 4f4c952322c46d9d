#pragma once
#include <cstdint>
#include <span>

namespace wisp::model {

/// One group of weights as int4 codes (weight = (code - 8) * scale) with the scale that leaves the least
/// squared error of those tried: around the one that puts the largest weight on an end of the range, each
/// bettered by least squares for the codes it gives. `codes` [n] in [0, 15]; returns the scale as bf16 and
/// adds up the squared error.
std::uint16_t quantize_int4(std::span<const float> weights, std::uint8_t* codes, double& squared_error);

/// The same as signed bytes in [-127, 127] (weight = code * scale); the scale puts the largest weight on an
/// end of the range.
std::uint16_t quantize_int8(std::span<const float> weights, std::uint8_t* codes, double& squared_error);

}  // namespace wisp::model
