#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "wisp/kernels/kernels.hpp"
#include "wisp/kernels/number.hpp"
#include "wisp/kernels/relayout.hpp"

namespace wisp::kernels::test {

/// The tables to hold against `ref`: every other one that this CPU can run.
inline std::vector<const Kernels*> other_tables() {
  std::vector<const Kernels*> tables;
  if (const Kernels* k = kernels_for(Isa::kAvx2)) tables.push_back(k);
  return tables;
}

/// The same bits, or both NaN: CANON.md leaves a NaN's payload open.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

inline ::testing::AssertionResult same_bits(std::span<const float> want, std::span<const float> got) {
  if (want.size() != got.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!same(want[i], got[i])) {
      return ::testing::AssertionFailure()
             << "at " << i << ": want " << std::hexfloat << want[i] << ", got " << got[i];
    }
  }
  return ::testing::AssertionSuccess();
}

using Random = std::mt19937;

/// n numbers of either sign over a wide range of exponents, so that the order of a sum shows in its bits.
inline std::vector<float> numbers(Random& random, std::size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random) * std::exp2(std::floor(4.0f * normal(random)));
  return x;
}

inline std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// A matrix in both layouts: `view` in tiles, `dense` [rows, cols] as numbers.
struct Matrix {
  WeightView view;
  std::vector<double> dense;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;

  double at(std::uint32_t row, std::uint32_t col) const { return dense[std::size_t{row} * view.cols + col]; }
};

inline Matrix plain_matrix(Random& random, WeightFormat f, std::uint32_t rows, std::uint32_t cols) {
  const std::size_t n = std::size_t{rows} * cols;
  Matrix m;
  m.codes.resize(codes_bytes(f, rows, cols));
  m.dense.resize(n);
  const std::vector<float> values = numbers(random, n);
  std::vector<std::uint16_t> halves(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (f == WeightFormat::kF32) {
      m.dense[i] = static_cast<double>(values[i]);
    } else if (f == WeightFormat::kBf16) {
      halves[i] = to_bf16(values[i]);
      m.dense[i] = static_cast<double>(bf16_to_float(halves[i]));
    } else {
      halves[i] = static_cast<std::uint16_t>(random());
      if ((halves[i] & 0x7c00u) == 0x7c00u) halves[i] ^= 0x4000u;  // finite, subnormals included
      m.dense[i] = static_cast<double>(f16_to_float(halves[i]));
    }
  }
  tile_plain(f, rows, cols, f == WeightFormat::kF32 ? static_cast<const void*>(values.data()) : halves.data(),
             m.codes.data());
  m.view = {.format = f, .rows = rows, .cols = cols, .group = 0, .codes = m.codes.data(), .scales = nullptr};
  return m;
}

inline Matrix coded_matrix(Random& random, WeightFormat f, std::uint32_t rows, std::uint32_t cols,
                           std::uint32_t group) {
  const std::uint32_t dwords = dwords_of(f, cols);
  const std::uint32_t groups = (cols + group - 1) / group;
  const bool int4 = f == WeightFormat::kInt4;
  std::vector<std::uint32_t> packed(std::size_t{rows} * dwords);
  for (auto& word : packed) word = static_cast<std::uint32_t>(random());
  std::vector<std::uint16_t> halves(std::size_t{rows} * groups);
  std::vector<std::uint8_t> powers(halves.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = to_bf16(numbers(random, 1)[0]);
    powers[i] = static_cast<std::uint8_t>(110 + random() % 30);
  }
  Matrix m;
  m.codes.resize(codes_bytes(f, rows, cols));
  m.scales.resize(scales_bytes(f, rows, cols, group));
  tile_nibbles(f, rows, cols, packed.data(), m.codes.data());
  tile_scales(f, rows, groups, int4 ? static_cast<const void*>(halves.data()) : powers.data(),
              m.scales.data());
  m.dense.resize(std::size_t{rows} * cols);
  for (std::uint32_t r = 0; r < rows; ++r) {
    for (std::uint32_t c = 0; c < cols; ++c) {
      const std::uint32_t nibble = (packed[std::size_t{r} * dwords + c / 8] >> (4 * (c % 8))) & 15u;
      const std::size_t at = std::size_t{r} * groups + c / group;
      const double code =
          int4 ? static_cast<double>(nibble) - 8.0 : static_cast<double>(e2m1_to_float(nibble));
      const double scale =
          int4 ? static_cast<double>(bf16_to_float(halves[at])) : std::exp2(powers[at] - 127.0);
      m.dense[std::size_t{r} * cols + c] = code * scale;
    }
  }
  m.view = {.format = f,
            .rows = rows,
            .cols = cols,
            .group = group,
            .codes = m.codes.data(),
            .scales = m.scales.data()};
  return m;
}

inline Matrix int4_matrix(Random& random, std::uint32_t rows, std::uint32_t cols, std::uint32_t group) {
  return coded_matrix(random, WeightFormat::kInt4, rows, cols, group);
}

/// Scale of `row` (below 16) for a column.
inline float scale_of(const Matrix& m, std::uint32_t row, std::uint32_t col) {
  return scale_to_float(m.view.format, m.scales.data(), std::size_t{col / m.view.group} * kTileRows + row);
}

}  // namespace wisp::kernels::test
