#include "wisp/kernels/relayout.hpp"

#include <algorithm>
#include <cstring>

namespace wisp::kernels {

void tile_codes(WeightFormat f, std::uint32_t rows, std::uint32_t cols, const void* in, std::uint8_t* out) {
  const std::uint32_t zero_codes = f == WeightFormat::kInt4 ? 0x88888888u : 0u;
  const std::size_t pitch = row_bytes(f, cols), dwords = dwords_of(f, cols);
  // Nibbles behind the last column are filler of the source's making.
  const std::uint32_t odd = columns_per_dword(f) == 8 ? cols % 8 : 0;
  const std::uint32_t live_bits = odd == 0 ? ~0u : (1u << (4 * odd)) - 1;
  const auto* source = static_cast<const std::uint8_t*>(in);
  for (std::uint32_t tile = 0; tile < tiles_of(rows); ++tile) {
    const std::uint32_t live = std::min(kTileRows, rows - tile * kTileRows);
    const std::uint8_t* tile_source = source + std::size_t{tile} * kTileRows * pitch;
    const auto dword = [&](std::size_t d, std::size_t bytes, std::uint32_t mask) {
      for (std::uint32_t r = 0; r < kTileRows; ++r, out += 4) {
        std::uint32_t bits = 0;  // little-endian: the first column is the low end
        if (r < live) std::memcpy(&bits, tile_source + r * pitch + d * 4, bytes);
        bits = r < live ? (bits & mask) | (zero_codes & ~mask) : zero_codes;
        std::memcpy(out, &bits, 4);
      }
    };
    for (std::size_t d = 0; d + 1 < dwords; ++d) dword(d, 4, ~0u);
    dword(dwords - 1, pitch - (dwords - 1) * 4, live_bits);
  }
}

void tile_scales(WeightFormat f, std::uint32_t rows, std::uint32_t groups, const void* in,
                 std::uint8_t* out) {
  const std::size_t size = traits_of(f).scale_bytes;
  const std::uint32_t of_tile = traits_of(f).scale_rows;
  const std::size_t live = scale_rows(f, rows);
  const auto* source = static_cast<const std::uint8_t*>(in);
  for (std::uint32_t tile = 0; tile < tiles_of(rows); ++tile) {
    for (std::uint32_t g = 0; g < groups; ++g) {
      for (std::uint32_t r = 0; r < of_tile; ++r, out += size) {
        const std::size_t row = std::size_t{tile} * of_tile + r;
        std::memset(out, 0, size);
        if (row < live) std::memcpy(out, source + (row * groups + g) * size, size);
      }
    }
  }
}

}  // namespace wisp::kernels
