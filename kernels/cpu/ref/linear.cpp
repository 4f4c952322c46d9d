#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::kernels::ref {
namespace {

std::uint32_t code_dword(const WeightView& w, std::uint32_t row, std::uint32_t col) {
  const std::size_t tile = row / kTileRows;
  const std::size_t dword = tile * dwords_of(w.format, w.cols) + col / columns_per_dword(w.format);
  std::uint32_t bits = 0;
  std::memcpy(&bits, w.codes + (dword * kTileRows + row % kTileRows) * 4, 4);
  return bits;
}

/// Element (row, col) as f32, without its scale.
template <WeightFormat F>
float code_at(const WeightView& w, std::uint32_t row, std::uint32_t col) {
  const std::uint32_t bits = code_dword(w, row, col);
  if constexpr (F == WeightFormat::kF32) {
    return std::bit_cast<float>(bits);
  } else if constexpr (F == WeightFormat::kInt4) {
    return int4_to_float((bits >> (4 * (col % 8))) & 15u);
  } else if constexpr (F == WeightFormat::kMxfp4) {
    return e2m1_to_float((bits >> (4 * (col % 8))) & 15u);
  } else {
    const auto half = static_cast<std::uint16_t>(bits >> (16 * (col % 2)));
    return F == WeightFormat::kBf16 ? bf16_to_float(half) : f16_to_float(half);
  }
}

float scale_at(const WeightView& w, std::uint32_t row, std::uint32_t col) {
  const std::size_t groups = (w.cols + w.group - 1) / w.group;
  const std::size_t group = row / kTileRows * groups + col / w.group;
  return scale_to_float(w.format, w.scales, group * kTileRows + row % kTileRows);
}

/// The sum over columns [begin, end) of one block of 512.
template <WeightFormat F>
float block_sum(const WeightView& w, std::uint32_t row, const float* x, std::uint32_t begin,
                std::uint32_t end) {
  float a = 0.0f;
  if constexpr (is_coded(F)) {
    for (std::uint32_t g = begin; g < end; g += kGroupColumns) {
      const std::uint32_t group_end = std::min(g + kGroupColumns, end);
      float t = 0.0f;
      for (std::uint32_t k = g; k < group_end; ++k) t = std::fma(code_at<F>(w, row, k), x[k], t);
      a = std::fma(t, scale_at(w, row, g), a);
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
  switch (w.format) {
    case WeightFormat::kF32:
      return linear_as<WeightFormat::kF32>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
    case WeightFormat::kBf16:
      return linear_as<WeightFormat::kBf16>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
    case WeightFormat::kF16:
      return linear_as<WeightFormat::kF16>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
    case WeightFormat::kInt4:
      return linear_as<WeightFormat::kInt4>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
    case WeightFormat::kMxfp4:
      return linear_as<WeightFormat::kMxfp4>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
  }
}

}  // namespace wisp::kernels::ref
