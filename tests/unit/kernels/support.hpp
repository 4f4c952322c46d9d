#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
inline std::span<const Kernels* const> other_tables() {
  return all_kernels().subspan(1);
}

/// Those that do an op by a function of their own, as in other_tables(&Kernels::linear).
template <class Op>
std::vector<const Kernels*> other_tables(Op Kernels::*op) {
  std::vector<const Kernels*> tables;
  for (const Kernels* k : other_tables())
    if (std::ranges::none_of(tables, [&](const Kernels* t) { return t->*op == k->*op; })) tables.push_back(k);
  return tables;
}

/// The seed of the cases that differ from run to run: WISP_TEST_SEED, or a new one each time. Printed.
inline std::uint32_t run_seed() {
  static const std::uint32_t seed = [] {
    const char* given = std::getenv("WISP_TEST_SEED");
    const auto n = given != nullptr ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10))
                                    : static_cast<std::uint32_t>(std::random_device{}());
    std::printf("random cases: WISP_TEST_SEED=%u\n", n);
    return n;
  }();
  return seed;
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
  tile_codes(f, rows, cols, f == WeightFormat::kF32 ? static_cast<const void*>(values.data()) : halves.data(),
             m.codes.data());
  m.view = {.format = f, .rows = rows, .cols = cols, .group = 0, .codes = m.codes.data(), .scales = nullptr};
  return m;
}

/// E4M3 from its definition: bias 7, subnormals below 2^-6.
inline double e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// Random codes and scales, decoded here from the formats' definitions.
inline Matrix coded_matrix(Random& random, WeightFormat f, std::uint32_t rows, std::uint32_t cols,
                           std::uint32_t group) {
  const bool nibbles = columns_per_dword(f) == 8;
  const std::uint32_t groups = groups_of(cols, group), dwords = dwords_of(f, cols);
  std::vector<std::uint8_t> codes(std::size_t{rows} * (nibbles ? dwords * 4 : cols));
  for (auto& code : codes) {
    code = static_cast<std::uint8_t>(random());
    if (f == WeightFormat::kFp8 && (code & 0x7f) == 0x7f) code ^= 1;
  }
  const std::uint32_t with_scales = scale_rows(f, rows);
  const std::size_t n = std::size_t{with_scales} * groups;
  std::vector<std::uint8_t> stored(n * traits_of(f).scale_bytes);
  std::vector<double> scales(n), zeros(n, f == WeightFormat::kInt4 ? 8.0 : 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    const float drawn = numbers(random, 1)[0];
    const std::uint16_t half = to_bf16(drawn);
    const auto power = static_cast<std::uint8_t>(110 + random() % 30);
    const auto zero = static_cast<std::uint32_t>(random() % 17);
    scales[i] = static_cast<double>(bf16_to_float(half));
    switch (f) {
      case WeightFormat::kMxfp4:
        stored[i] = power;
        scales[i] = std::exp2(power - 127.0);
        break;
      case WeightFormat::kInt4Zero: {
        const std::uint32_t dword = (std::bit_cast<std::uint32_t>(drawn) & ~8191u) | zero;  // as from an f16
        std::memcpy(stored.data() + 4 * i, &dword, 4);
        scales[i] = static_cast<double>(std::bit_cast<float>(dword - zero));
        zeros[i] = zero;
        break;
      }
      case WeightFormat::kFp8:
        std::memcpy(stored.data() + 4 * i, &drawn, 4);
        scales[i] = static_cast<double>(drawn);
        break;
      default:
        std::memcpy(stored.data() + 2 * i, &half, 2);
    }
  }
  Matrix m;
  m.codes.resize(codes_bytes(f, rows, cols));
  m.scales.resize(scales_bytes(f, rows, cols, group));
  tile_codes(f, rows, cols, codes.data(), m.codes.data());
  tile_scales(f, rows, groups, stored.data(), m.scales.data());
  m.dense.resize(std::size_t{rows} * cols);
  for (std::uint32_t r = 0; r < rows; ++r) {
    for (std::uint32_t c = 0; c < cols; ++c) {
      const std::size_t at = std::size_t{with_scales == rows ? r : r / 16} * groups + c / group;
      const std::uint8_t byte =
          codes[nibbles ? std::size_t{r} * dwords * 4 + c / 2 : std::size_t{r} * cols + c];
      const std::uint32_t nibble = c % 2 == 0 ? byte & 15u : byte >> 4;
      double code = nibble;
      if (f == WeightFormat::kMxfp4) code = static_cast<double>(e2m1_to_float(nibble));
      if (f == WeightFormat::kInt8) code = static_cast<std::int8_t>(byte);
      if (f == WeightFormat::kFp8) code = e4m3(byte);
      m.dense[std::size_t{r} * cols + c] = (code - zeros[at]) * scales[at];
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

/// Scale of `row` for a column.
inline float factor_of(const Matrix& m, std::uint32_t row, std::uint32_t col) {
  return scale_of(m.view, row, col).factor;
}

}  // namespace wisp::kernels::test
