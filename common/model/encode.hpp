#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "wisp/kernels/weight.hpp"

namespace wisp::model {

/// What rounding weights cost.
struct RoundingError {
  double squared_error = 0.0;
  double squared_weights = 0.0;
  /// The root mean square of the error over that of the weights.
  double share() const { return squared_weights > 0.0 ? std::sqrt(squared_error / squared_weights) : 0.0; }
};

/// Columns that share a scale in weights that are rounded here.
inline constexpr std::uint32_t kRoundedGroup = 32;
/// Whether encode_rows can write this format: plain numbers, kInt4, kInt8.
bool can_encode(kernels::WeightFormat f);

/// Rounds rows [rows, cols] to a format, row-major: codes as row_bytes() of it, bf16 scales [rows, groups of
/// kRoundedGroup columns]. Numbers that the format holds stay as they are.
void encode_rows(kernels::WeightFormat f, const float* in, std::uint32_t rows, std::uint32_t cols,
                 std::span<std::uint8_t> codes, std::span<std::uint8_t> scales, RoundingError& cost);

}  // namespace wisp::model
