#include <array>
#include <limits>

#include "support.hpp"

namespace wisp::kernels::test {
namespace {

/// The nearest bf16 by search among both neighbours, in double.
std::uint16_t nearest(float x) {
  const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  const auto high = static_cast<std::uint16_t>(low + 1);
  const double below = static_cast<double>(bf16_to_float(low));
  // Past the largest number the next step is where inf stands for.
  const double above = std::isinf(bf16_to_float(high)) ? std::copysign(0x1p128, static_cast<double>(x))
                                                       : static_cast<double>(bf16_to_float(high));
  const double down = std::abs(static_cast<double>(x) - below), up = std::abs(above - static_cast<double>(x));
  if (down == up) return low % 2 == 0 ? low : high;
  return down < up ? low : high;
}

TEST(KvFormat, RoundsToTheNearestTiesToEven) {
  Random random(5);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(x)) continue;
    ASSERT_EQ(float_to_bf16(x), nearest(x)) << std::hexfloat << x;
  }
  // Ties, both ways, and around the largest number and the smallest.
  for (const std::uint32_t bits :
       {0x3f808000u, 0x3f818000u, 0xbf808000u, 0xbf818000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu,
        0x00000001u, 0x00008000u, 0x80018000u, 0x80000000u}) {
    const float x = std::bit_cast<float>(bits);
    EXPECT_EQ(float_to_bf16(x), nearest(x)) << std::hex << bits;
  }
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80) << "halfway, down to even";
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82) << "halfway, up to even";
}

TEST(KvFormat, InfAndNanStay) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_bf16(inf), 0x7f80);
  EXPECT_EQ(float_to_bf16(-inf), 0xff80);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u})
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(bits))))) << std::hex << bits;
}

TEST(KvFormat, WhatABf16HoldsIsKept) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const float x = bf16_to_float(static_cast<std::uint16_t>(h));
    if (!std::isnan(x)) {
      ASSERT_EQ(float_to_bf16(x), h);
    }
  }
}

TEST(KvFormat, AStoredPageTurnsIntoRowsOfPositions) {
  Random random(6);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16}) {
    for (const std::uint32_t entries : {1u, 7u, 48u, 577u}) {
      const std::size_t n = std::size_t{kPageTokens} * entries;
      const std::vector<float> rows = numbers(random, n);
      std::vector<std::byte> page(n * kv_bytes(format));
      for (std::uint32_t t = 0; t < kPageTokens; ++t)
        store_kv(format, page.data() + t * kv_bytes(format), kPageTokens, rows.data() + t * entries, entries);
      std::vector<float> turned(n + 1, -7.0f);
      turn_kv_page(format, page.data(), entries, turned.data());
      EXPECT_EQ(turned[n], -7.0f);
      for (std::size_t i = 0; i < n; ++i) {
        const float want = format == KvFormat::kF32 ? rows[i] : bf16_to_float(nearest(rows[i]));
        ASSERT_TRUE(same(want, turned[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace wisp::kernels::test
