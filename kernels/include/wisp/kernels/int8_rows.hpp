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

/// What a product of unsigned codes has too much, per unit of its activation: codes are lifted by so much
/// (E2M1 twice over, in halves) before an instruction multiplies them as unsigned bytes. kInt4Zero, whose
/// zero points differ, has -1 here and brings them in itself.
constexpr std::int32_t code_lift(WeightFormat f) {
  switch (f) {
    case WeightFormat::kInt4:
      return 8;
    case WeightFormat::kInt8:
      return 128;
    case WeightFormat::kMxfp4:
      return 12;
    default:
      return -1;
  }
}

/// Rows of activations in the `fast` profile (CANON.md, "coded weights"): signed bytes in groups of 32
/// columns with a scale each. The rows of one group lie side by side, so that a product which keeps the
/// weights of a group in registers reads the group of all rows in one sweep. Does not own its memory.
struct Int8Rows {
  std::uint32_t groups = 0;         ///< ceil(cols / 32)
  std::uint32_t stride = 0;         ///< rows from a group to the next
  std::int8_t* codes = nullptr;     ///< [groups, stride, 32], 0 behind the last column
  float* scales = nullptr;          ///< [groups, stride]
  std::int32_t* offsets = nullptr;  ///< [groups, stride] the sum of a group's codes times -code_lift

  std::size_t at(std::uint32_t row, std::uint32_t group) const { return std::size_t{group} * stride + row; }
  /// The rows from `row` on; nothing of nothing.
  Int8Rows from(std::uint32_t row) const {
    if (codes == nullptr) return {};
    return {groups, stride, codes + std::size_t{row} * kGroupColumns, scales + row, offsets + row};
  }
};

/// Place of a column among the codes of its row. Weights of a nibble lie two to a byte: of each eight columns
/// the even ones come first, so that one mask leaves the partners of one dword.
constexpr std::uint32_t code_place(WeightFormat f, std::uint32_t col) {
  if (columns_per_dword(f) != 8) return col;
  return col / 8 * 8 + col % 2 * 4 + col % 8 / 2;
}

}  // namespace wisp::kernels
