#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::kernels::ref {
namespace {

/// Element (row, col) as f32, without its scale.
template <WeightFormat F>
float code_at(const WeightView& w, std::uint32_t row, std::uint32_t col) {
  return code_to_float(F, dword_at(w, row, col), col);
}

/// The sum over columns [begin, end) of one block of 512.
template <WeightFormat F>
float block_sum(const WeightView& w, std::uint32_t row, const float* x, std::uint32_t begin,
                std::uint32_t end) {
  float a = 0.0f;
  if constexpr (is_coded(F)) {
    for (std::uint32_t g = begin; g < end; g += kGroupColumns) {
      const std::uint32_t group_end = std::min(g + kGroupColumns, end);
      const Scale scale = scale_of(w, row, g);
      float t = 0.0f;
      for (std::uint32_t k = g; k < group_end; ++k) t = std::fma(code_at<F>(w, row, k) - scale.zero, x[k], t);
      a = std::fma(t, scale.factor, a);
    }
  } else {
    for (std::uint32_t k = begin; k < end; ++k) a = std::fma(code_at<F>(w, row, k), x[k], a);
  }
  return a;
}

template <WeightFormat F>
void linear_as(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
               std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  const std::uint32_t row_end = std::min(tile_end * kTileRows, w.rows);
  for (std::uint32_t row = tile_begin * kTileRows; row < row_end; ++row) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      float sum = 0.0f;
      for (std::uint32_t b = 0; b < w.cols; b += kBlockColumns) {
        const float block = block_sum<F>(w, row, x + t * x_stride, b, std::min(b + kBlockColumns, w.cols));
        sum = b == 0 ? block : sum + block;
      }
      y[t * y_stride + row] = sum;
    }
  }
}

}  // namespace

void linear(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
            std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  const auto as = [&]<WeightFormat F>() {
    linear_as<F>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
  };
  switch (w.format) {
    case WeightFormat::kF32:
      return as.operator()<WeightFormat::kF32>();
    case WeightFormat::kBf16:
      return as.operator()<WeightFormat::kBf16>();
    case WeightFormat::kF16:
      return as.operator()<WeightFormat::kF16>();
    case WeightFormat::kInt4:
      return as.operator()<WeightFormat::kInt4>();
    case WeightFormat::kMxfp4:
      return as.operator()<WeightFormat::kMxfp4>();
    case WeightFormat::kInt4Zero:
      return as.operator()<WeightFormat::kInt4Zero>();
    case WeightFormat::kInt8:
      return as.operator()<WeightFormat::kInt8>();
    case WeightFormat::kFp8:
      return as.operator()<WeightFormat::kFp8>();
  }
}

}  // namespace wisp::kernels::ref
