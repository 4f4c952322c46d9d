#include "wisp/kernels/relayout.hpp"

#include <algorithm>
#include <cstring>

namespace wisp::kernels {

void tile_plain(WeightFormat f, std::uint32_t rows, std::uint32_t cols, const void* in, std::uint8_t* out) {
  const std::size_t element = 4 / columns_per_dword(f);
  const std::size_t pitch = cols * element;
  const std::size_t dwords = dwords_of(f, cols);
  const auto* source = static_cast<const std::uint8_t*>(in);
  for (std::uint32_t tile = 0; tile < tiles_of(rows); ++tile) {
    const std::uint32_t live = std::min(kTileRows, rows - tile * kTileRows);
    const std::uint8_t* tile_source = source + std::size_t{tile} * kTileRows * pitch;
    for (std::size_t d = 0; d < dwords; ++d) {
      const std::size_t bytes = std::min<std::size_t>(4, pitch - d * 4);
      for (std::uint32_t r = 0; r < kTileRows; ++r, out += 4) {
        std::uint32_t bits = 0;  // little-endian: the first column is the low end
        if (r < live) std::memcpy(&bits, tile_source + r * pitch + d * 4, bytes);
        std::memcpy(out, &bits, 4);
      }
    }
  }
}

void tile_nibbles(WeightFormat f, std::uint32_t rows, std::uint32_t cols, const std::uint32_t* packed,
                  std::uint8_t* out) {
  const std::uint32_t zero_codes = f == WeightFormat::kInt4 ? 0x88888888u : 0u;
  const std::size_t dwords = dwords_of(f, cols);
  const std::uint32_t odd = cols % 8;
  const std::uint32_t last_mask = odd == 0 ? ~0u : (1u << (4 * odd)) - 1;
  for (std::uint32_t tile = 0; tile < tiles_of(rows); ++tile) {
    for (std::size_t d = 0; d < dwords; ++d) {
      const std::uint32_t mask = d + 1 == dwords ? last_mask : ~0u;
      for (std::uint32_t r = 0; r < kTileRows; ++r, out += 4) {
        const std::size_t row = std::size_t{tile} * kTileRows + r;
        std::uint32_t bits = zero_codes;
        if (row < rows) {
          std::memcpy(&bits, packed + row * dwords + d, 4);
          bits = (bits & mask) | (zero_codes & ~mask);
        }
        std::memcpy(out, &bits, 4);
      }
    }
  }
}

void tile_scales(WeightFormat f, std::uint32_t rows, std::uint32_t groups, const void* in,
                 std::uint8_t* out) {
  const std::size_t size = scale_bytes(f);
  const auto* source = static_cast<const std::uint8_t*>(in);
  for (std::uint32_t tile = 0; tile < tiles_of(rows); ++tile) {
    for (std::uint32_t g = 0; g < groups; ++g) {
      for (std::uint32_t r = 0; r < kTileRows; ++r, out += size) {
        const std::size_t row = std::size_t{tile} * kTileRows + r;
        std::memset(out, 0, size);
        if (row < rows) std::memcpy(out, source + (row * groups + g) * size, size);
      }
    }
  }
}

}  // namespace wisp::kernels
