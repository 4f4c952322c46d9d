#pragma once
#include <cstdint>

#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Whether products with such weights take int8 activations in the `fast` profile.
constexpr bool takes_int8(WeightFormat f) {
  return f == WeightFormat::kInt4 || f == WeightFormat::kInt4Zero || f == WeightFormat::kInt8 ||
         f == WeightFormat::kMxfp4;
}

/// Rows of activations in the `fast` profile (CANON.md, "coded weights"): signed bytes in groups of 32
/// columns with a scale each. Does not own its memory.
struct Int8Rows {
  std::uint32_t groups = 0;      ///< ceil(cols / 32)
  std::int8_t* codes = nullptr;  ///< [rows, 32 * groups], 0 behind the last column
  float* scales = nullptr;       ///< [rows, groups]
  std::int32_t* sums = nullptr;  ///< [rows, groups] of the codes of a group

  /// The rows from `row` on; nothing of nothing.
  Int8Rows from(std::uint32_t row) const {
    if (codes == nullptr) return {};
    const std::size_t at = std::size_t{row} * groups;
    return {groups, codes + at * kGroupColumns, scales + at, sums + at};
  }
};

/// Place of a column among the codes of its row. Weights of a nibble lie two to a byte: of each eight columns
/// the even ones come first, so that one mask leaves the partners of one dword.
constexpr std::uint32_t code_place(WeightFormat f, std::uint32_t col) {
  if (columns_per_dword(f) != 8) return col;
  return col / 8 * 8 + col % 2 * 4 + col % 8 / 2;
}

}  // namespace wisp::kernels
