#include "model/encode.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "model/quantize.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::model {

namespace {

using kernels::WeightFormat;

std::uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::abs(x);
  if (magnitude >= 65520.0f) return sign | 0x7bffu;  // the largest; a weight that large has no good neighbour
  // Adding a power of two whose last place is that of the result rounds to nearest, ties to even.
  const std::uint32_t exponent = std::max(std::bit_cast<std::uint32_t>(magnitude) >> 23, 113u);
  const auto rounder = std::bit_cast<float>((exponent + 13) << 23);
  const float rounded = (magnitude + rounder) - rounder;
  if (rounded < 0x1p-14f) return sign | static_cast<std::uint16_t>(rounded * 0x1p24f);
  const auto wide = std::bit_cast<std::uint32_t>(rounded);
  return sign | static_cast<std::uint16_t>((wide >> 13) - (112u << 10));
}

std::uint16_t to_bf16(float x) {
  const std::uint16_t half = kernels::float_to_bf16(x);
  return (half & 0x7fffu) == 0x7f80u ? half - 1 : half;  // the largest, for the same reason
}

/// One number at `to`; returns what it has become.
float put_plain(WeightFormat f, float x, std::uint8_t* to) {
  if (f == WeightFormat::kF32) {
    std::memcpy(to, &x, 4);
    return x;
  }
  const std::uint16_t half = f == WeightFormat::kBf16 ? to_bf16(x) : to_f16(x);
  std::memcpy(to, &half, 2);
  return kernels::plain_to_float(f, to);
}

void encode_plain(WeightFormat f, const float* in, std::size_t n, std::uint8_t* out, RoundingError& cost) {
  const std::size_t size = kernels::row_bytes(f, 1);
  for (std::size_t i = 0; i < n; ++i) {
    const double off = static_cast<double>(in[i]) - static_cast<double>(put_plain(f, in[i], out + i * size));
    cost.squared_error += off * off;
    cost.squared_weights += static_cast<double>(in[i]) * static_cast<double>(in[i]);
  }
}

}  // namespace

bool can_encode(WeightFormat f) {
  return !kernels::is_coded(f) || f == WeightFormat::kInt4 || f == WeightFormat::kInt8;
}

void encode_rows(WeightFormat f, const float* in, std::uint32_t rows, std::uint32_t cols,
                 std::span<std::uint8_t> codes, std::span<std::uint8_t> scales, RoundingError& cost) {
  WISP_CHECK(can_encode(f));
  if (!kernels::is_coded(f)) return encode_plain(f, in, std::size_t{rows} * cols, codes.data(), cost);
  const bool nibbles = f == WeightFormat::kInt4;
  const std::size_t row = kernels::row_bytes(f, cols), groups = kernels::groups_of(cols, kRoundedGroup);
  if (nibbles) std::fill_n(codes.begin(), rows * row, std::uint8_t{0});
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t g = 0; g < groups; ++g) {
      // A group cut short by the last column is filled up with zeros, which cost nothing.
      std::array<float, kRoundedGroup> weights{};
      std::array<std::uint8_t, kRoundedGroup> group;
      const std::size_t first = g * kRoundedGroup, n = std::min<std::size_t>(kRoundedGroup, cols - first);
      std::copy_n(in + r * cols + first, n, weights.begin());
      for (const float w : weights) cost.squared_weights += static_cast<double>(w) * static_cast<double>(w);
      const std::uint16_t scale = nibbles ? quantize_int4(weights, group.data(), cost.squared_error)
                                          : quantize_int8(weights, group.data(), cost.squared_error);
      std::memcpy(scales.data() + (r * groups + g) * 2, &scale, 2);
      std::uint8_t* to = codes.data() + r * row;
      for (std::size_t i = 0; i < n; ++i) {
        if (nibbles)
          to[(first + i) / 2] |= static_cast<std::uint8_t>(group[i] << (4 * (i % 2)));
        else
          to[first + i] = group[i];
      }
    }
  }
}

}  // namespace wisp::model
