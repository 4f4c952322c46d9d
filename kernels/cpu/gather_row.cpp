#include <bit>
#include <cstring>

#include "wisp/kernels/kernels.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::kernels {

void gather_row(const WeightView& w, std::uint32_t row, float* y) {
  const std::uint32_t per_dword = columns_per_dword(w.format);
  const std::size_t first = std::size_t{row / kTileRows} * dwords_of(w.format, w.cols);
  const std::size_t groups = w.group == 0 ? 0 : (w.cols + w.group - 1) / w.group;
  for (std::uint32_t k = 0; k < w.cols; ++k) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, w.codes + ((first + k / per_dword) * kTileRows + row % kTileRows) * 4, 4);
    switch (w.format) {
      case WeightFormat::kF32:
        y[k] = std::bit_cast<float>(bits);
        break;
      case WeightFormat::kBf16:
        y[k] = bf16_to_float(static_cast<std::uint16_t>(bits >> (16 * (k % 2))));
        break;
      case WeightFormat::kF16:
        y[k] = f16_to_float(static_cast<std::uint16_t>(bits >> (16 * (k % 2))));
        break;
      case WeightFormat::kInt4:
      case WeightFormat::kMxfp4: {
        const std::size_t at = (row / kTileRows * groups + k / w.group) * kTileRows + row % kTileRows;
        const std::uint32_t nibble = (bits >> (4 * (k % 8))) & 15u;
        if (w.format == WeightFormat::kInt4)
          y[k] = int4_to_float(nibble) * scale_to_float(w.format, w.scales, at);
        else
          y[k] = e2m1_to_float(nibble) * scale_to_float(w.format, w.scales, at);
        break;
      }
    }
  }
}

}  // namespace wisp::kernels
