#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace wisp::kernels {

/// Rows in a tile: the lanes of the widest vector. A tile's row r is lane r.
inline constexpr std::uint32_t kTileRows = 16;

/// How the numbers of a weight matrix are stored. The value is written in manifests: only append.
enum class WeightFormat : std::uint8_t {
  kF32 = 0,
  kBf16 = 1,
  kF16 = 2,
  kInt4 = 3,      ///< unsigned nibble c, weight = (c - 8) d; d bf16
  kMxfp4 = 4,     ///< E2M1 nibble c, weight = c 2^(s - 127); s one byte, groups of 32 columns
  kInt4Zero = 5,  ///< unsigned nibble c, weight = (c - z) d; one dword: d in f32, whose low five bits are z
  kInt8 = 6,      ///< signed byte c, weight = c d; d bf16
  kFp8 = 7,       ///< E4M3 byte c, weight = c d; d f32, one for the 16 rows of a tile
};

/// What the code of a format has to know of it.
struct FormatTraits {
  WeightFormat format;
  std::string_view name;
  std::uint32_t columns_per_dword;
  std::uint32_t scale_bytes;  ///< of one scale; 0: the weights are plain numbers
  std::uint32_t scale_rows;   ///< rows of a tile that have a scale of their own
};
/// All formats, by value.
inline constexpr std::array kFormats{
    FormatTraits{WeightFormat::kF32, "f32", 1, 0, 0},
    FormatTraits{WeightFormat::kBf16, "bf16", 2, 0, 0},
    FormatTraits{WeightFormat::kF16, "f16", 2, 0, 0},
    FormatTraits{WeightFormat::kInt4, "int4", 8, 2, kTileRows},
    FormatTraits{WeightFormat::kMxfp4, "mxfp4", 8, 1, kTileRows},
    FormatTraits{WeightFormat::kInt4Zero, "int4_zero", 8, 4, kTileRows},
    FormatTraits{WeightFormat::kInt8, "int8", 4, 2, kTileRows},
    FormatTraits{WeightFormat::kFp8, "fp8", 4, 4, 1},
};
constexpr const FormatTraits& traits_of(WeightFormat f) {
  return kFormats[static_cast<std::size_t>(f)];
}
constexpr std::string_view name_of(WeightFormat f) {
  return traits_of(f).name;
}
/// The format of that name, or nothing.
constexpr std::optional<WeightFormat> format_named(std::string_view name) {
  for (const FormatTraits& f : kFormats)
    if (f.name == name) return f.format;
  return std::nullopt;
}
/// Whether weights are codes that a scale of their group multiplies.
constexpr bool is_coded(WeightFormat f) {
  return traits_of(f).scale_bytes != 0;
}
/// Columns that one dword of a row holds.
constexpr std::uint32_t columns_per_dword(WeightFormat f) {
  return traits_of(f).columns_per_dword;
}
/// A weight matrix [rows, cols] in the tile layout of kernels/LAYOUT.md: codes [tile][dword of columns][16
/// rows], `scales` (coded formats only) [tile][group of columns][16 rows, or 1]. Does not own its memory;
/// planes are aligned to 64 bytes.
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  std::uint32_t group = 0;  ///< columns per scale, a multiple of 32; 0 where the format has no scales
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  /// [cols] or null: which input stands at each column's place. Kernels do not look at it: their callers
  /// bring the input into this order (in_order).
  const std::uint32_t* order = nullptr;
};

constexpr std::uint32_t tiles_of(std::uint32_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
constexpr std::uint32_t dwords_of(WeightFormat f, std::uint32_t cols) {
  return (cols + columns_per_dword(f) - 1) / columns_per_dword(f);
}
/// Bytes of the codes of a row outside of tiles: numbers and bytes close up, nibbles fill whole dwords.
constexpr std::uint64_t row_bytes(WeightFormat f, std::uint64_t cols) {
  const std::uint64_t per_dword = columns_per_dword(f);
  return per_dword == 8 ? (cols + 7) / 8 * 4 : cols * (4 / per_dword);
}
/// Bytes of the code plane in the tile layout.
constexpr std::uint64_t codes_bytes(WeightFormat f, std::uint32_t rows, std::uint32_t cols) {
  return std::uint64_t{tiles_of(rows)} * dwords_of(f, cols) * kTileRows * 4;
}
/// Groups of columns that have a scale of their own.
constexpr std::uint32_t groups_of(std::uint32_t cols, std::uint32_t group) {
  return group == 0 ? 0 : (cols + group - 1) / group;
}
/// Rows of scales that `rows` rows have: as many, or one for each tile.
constexpr std::uint32_t scale_rows(WeightFormat f, std::uint32_t rows) {
  return traits_of(f).scale_rows == kTileRows ? rows : tiles_of(rows) * traits_of(f).scale_rows;
}
/// Bytes of the scales of one tile.
constexpr std::uint64_t tile_scale_bytes(WeightFormat f, std::uint32_t cols, std::uint32_t group) {
  return std::uint64_t{groups_of(cols, group)} * traits_of(f).scale_rows * traits_of(f).scale_bytes;
}
/// Bytes of the scale plane in the tile layout (0 where there is none).
constexpr std::uint64_t scales_bytes(WeightFormat f, std::uint32_t rows, std::uint32_t cols,
                                     std::uint32_t group) {
  return is_coded(f) ? tiles_of(rows) * tile_scale_bytes(f, cols, group) : 0;
}

/// Reads row r of a matrix in tile layout into y [cols]: plain numbers exactly, coded ones as fl(c d), which
/// rounds for kFp8 alone. Used by the embedding.
void gather_row(const WeightView& w, std::uint32_t row, float* y);

/// y [cols] = the inputs x [cols] in the order in which the columns of a matrix lie. A damaged order gives
/// wrong numbers, as damaged weights do, and reads nothing else.
inline void in_order(const std::uint32_t* order, std::uint32_t cols, const float* x, float* y) {
  for (std::uint32_t k = 0; k < cols; ++k) y[k] = x[order[k] < cols ? order[k] : 0];
}

}  // namespace wisp::kernels
