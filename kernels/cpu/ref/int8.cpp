#include <algorithm>
#include <cmath>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::kernels::ref {

void quantise(WeightFormat f, const float* x, std::size_t x_stride, std::uint32_t rows, std::uint32_t cols,
              const Int8Rows& out) {
  for (std::uint32_t r = 0; r < rows; ++r) {
    for (std::uint32_t g = 0; g < out.groups; ++g) {
      const std::size_t at = out.at(r, g);
      const std::uint32_t first = g * kGroupColumns, end = std::min(cols, first + kGroupColumns);
      const float* row = x + r * x_stride;
      float largest = 0.0f;
      bool finite = true;
      for (std::uint32_t k = first; k < end; ++k) {
        largest = std::max(largest, std::abs(row[k]));
        finite = finite && std::isfinite(row[k]);
      }
      const float inverse = 127.0f / largest;
      const bool any = finite && std::isfinite(inverse);  // not all zero, nor next to it
      out.scales[at] = finite ? (any ? largest / 127.0f : 0.0f) : std::nanf("");
      std::int8_t* codes = out.codes + at * kGroupColumns;
      std::int32_t sum = 0;
      for (std::uint32_t i = 0; i < kGroupColumns; ++i) {
        float code = 0.0f;
        if (any && first + i < end)
          code = std::clamp(std::nearbyint(row[first + i] * inverse), -127.0f, 127.0f);
        codes[code_place(f, i)] = static_cast<std::int8_t>(code);
        sum += static_cast<std::int32_t>(code);
      }
      out.offsets[at] = -code_lift(f) * sum;
    }
  }
}

void linear_int8(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
                 std::uint32_t tile_begin, std::uint32_t tile_end) {
  const std::uint32_t row_end = std::min(tile_end * kTileRows, w.rows);
  const std::uint32_t groups_in_block = kBlockColumns / kGroupColumns;
  for (std::uint32_t row = tile_begin * kTileRows; row < row_end; ++row) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      float sum = 0.0f, block = 0.0f;
      for (std::uint32_t g = 0; g < x.groups; ++g) {
        const std::uint32_t first = g * kGroupColumns, end = std::min(w.cols, first + kGroupColumns);
        const Scale scale = scale_of(w, row, first);
        const std::int8_t* codes = x.codes + x.at(t, g) * kGroupColumns;
        float products = 0.0f;  // of whole or half numbers: exact
        for (std::uint32_t k = first; k < end; ++k)
          products += (code_to_float(w.format, dword_at(w, row, k), k) - scale.zero) *
                      static_cast<float>(codes[code_place(w.format, k - first)]);
        if (g % groups_in_block == 0) {
          sum = g == groups_in_block ? block : sum + block;
          block = 0.0f;
        }
        const float factor = scale.factor * x.scales[x.at(t, g)];
        block = std::fma(products, factor, block);
      }
      y[t * y_stride + row] = x.groups <= groups_in_block ? block : sum + block;
    }
  }
}

}  // namespace wisp::kernels::ref
