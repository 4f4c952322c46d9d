#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace wisp::kernels {

/// How the numbers of a weight matrix are stored. The value is written in manifests: only append.
enum class WeightFormat : std::uint8_t {
  kF32 = 0,
  kBf16 = 1,
  kF16 = 2,
  kInt4 = 3,   ///< unsigned nibble c, weight = (c - 8) * scale; scales bf16, one per row and group of columns
  kMxfp4 = 4,  ///< E2M1 nibble times 2^(s - 127); scales one byte s, one per row and 32 columns
};

constexpr std::string_view name_of(WeightFormat f) {
  switch (f) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kInt4:
      return "int4";
    case WeightFormat::kMxfp4:
      return "mxfp4";
  }
  return "?";
}

/// Rows in a tile: the lanes of the widest vector. A tile's row r is lane r.
inline constexpr std::uint32_t kTileRows = 16;
/// Whether weights are codes that a scale of their group multiplies.
constexpr bool is_coded(WeightFormat f) {
  return f == WeightFormat::kInt4 || f == WeightFormat::kMxfp4;
}
/// Bytes of one scale.
constexpr std::uint32_t scale_bytes(WeightFormat f) {
  return f == WeightFormat::kMxfp4 ? 1 : 2;
}
/// Columns that one dword of a row holds.
constexpr std::uint32_t columns_per_dword(WeightFormat f) {
  switch (f) {
    case WeightFormat::kF32:
      return 1;
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      return 2;
    case WeightFormat::kInt4:
    case WeightFormat::kMxfp4:
      return 8;
  }
  return 1;
}

/// A weight matrix [rows, cols] in the tile layout: for each tile of 16 rows (rows padded with zero codes),
/// for each dword of columns, 16 dwords, row r of the tile in dword r; the first column in the lowest bits.
/// `scales` (coded formats only) is a plane of its own: for each tile, for each group of `group` columns, 16
/// scales.
/// Does not own its memory; planes are aligned to 64 bytes.
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  std::uint32_t group = 0;  ///< columns per scale: 32, 64 or 128; 0 where the format has no scales
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
};

constexpr std::uint32_t tiles_of(std::uint32_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
constexpr std::uint32_t dwords_of(WeightFormat f, std::uint32_t cols) {
  return (cols + columns_per_dword(f) - 1) / columns_per_dword(f);
}
/// Bytes of the code plane in the tile layout.
constexpr std::uint64_t codes_bytes(WeightFormat f, std::uint32_t rows, std::uint32_t cols) {
  return std::uint64_t{tiles_of(rows)} * dwords_of(f, cols) * kTileRows * 4;
}
/// Bytes of the scale plane in the tile layout (0 where there is none).
constexpr std::uint64_t scales_bytes(WeightFormat f, std::uint32_t rows, std::uint32_t cols,
                                     std::uint32_t group) {
  return is_coded(f)
             ? std::uint64_t{tiles_of(rows)} * ((cols + group - 1) / group) * kTileRows * scale_bytes(f)
             : 0;
}

}  // namespace wisp::kernels
