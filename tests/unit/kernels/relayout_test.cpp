#include "support.hpp"

namespace wisp::kernels::test {
namespace {

TEST(Relayout, PlainMatricesComeBackByRows) {
  Random random(11);
  for (const WeightFormat f : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kF16}) {
    for (const std::uint32_t rows : {1u, 16u, 37u}) {
      for (const std::uint32_t cols : {1u, 2u, 7u, 64u}) {
        const Matrix m = plain_matrix(random, f, rows, cols);
        for (std::uint32_t r = 0; r < rows; ++r) {
          std::vector<float> y(cols + 1, -7.0f);
          gather_row(m.view, r, y.data());
          for (std::uint32_t c = 0; c < cols; ++c) EXPECT_EQ(static_cast<double>(y[c]), m.at(r, c));
          EXPECT_EQ(y[cols], -7.0f);
        }
      }
    }
  }
}

TEST(Relayout, PlacesEachColumnWhereTheLayoutSays) {
  // bf16 [17, 3]: element (r, c) is 100 r + c, so that each half of each dword is known.
  std::vector<std::uint16_t> in;
  for (std::uint32_t r = 0; r < 17; ++r) {
    for (std::uint32_t c = 0; c < 3; ++c) in.push_back(static_cast<std::uint16_t>(100 * r + c + 1));
  }
  std::vector<std::uint8_t> out(codes_bytes(WeightFormat::kBf16, 17, 3), 0xee);
  ASSERT_EQ(out.size(), 2u * 2 * 16 * 4);
  tile_codes(WeightFormat::kBf16, 17, 3, in.data(), out.data());
  const auto half = [&](std::size_t tile, std::size_t dword, std::size_t row, std::size_t which) {
    std::uint16_t h = 0;
    std::memcpy(&h, out.data() + ((tile * 2 + dword) * 16 + row) * 4 + which * 2, 2);
    return h;
  };
  EXPECT_EQ(half(0, 0, 5, 0), 501);
  EXPECT_EQ(half(0, 0, 5, 1), 502);
  EXPECT_EQ(half(0, 1, 5, 0), 503);
  EXPECT_EQ(half(0, 1, 5, 1), 0);  // padding column
  EXPECT_EQ(half(1, 0, 0, 1), 1602);
  EXPECT_EQ(half(1, 0, 1, 0), 0);  // padding row
}

TEST(Relayout, CodesAndScalesComeBackByRows) {
  Random random(12);
  for (const FormatTraits& f : kFormats) {
    if (!is_coded(f.format)) continue;
    for (const std::uint32_t group : {32u, 64u, 128u}) {
      for (const std::uint32_t cols : {5u, 32u, 100u, 256u}) {
        const Matrix m = coded_matrix(random, f.format, 21, cols, group);
        for (std::uint32_t r = 0; r < 21; ++r) {
          std::vector<float> y(cols);
          gather_row(m.view, r, y.data());
          for (std::uint32_t c = 0; c < cols; ++c) EXPECT_EQ(y[c], static_cast<float>(m.at(r, c))) << f.name;
        }
      }
    }
  }
}

TEST(Relayout, Int4PaddingIsZeroInRowsAndColumns) {
  const std::vector<std::uint32_t> packed(2, 0x12345678u);  // [1, 11]: the second word holds 3 columns
  std::vector<std::uint8_t> out(codes_bytes(WeightFormat::kInt4, 1, 11), 0xee);
  tile_codes(WeightFormat::kInt4, 1, 11, packed.data(), out.data());
  std::uint32_t words[32];
  ASSERT_EQ(out.size(), sizeof(words));
  std::memcpy(words, out.data(), sizeof(words));
  EXPECT_EQ(words[0], 0x12345678u);
  EXPECT_EQ(words[1], 0x88888888u);
  EXPECT_EQ(words[16], 0x88888678u);
  const std::uint16_t scale[1] = {0x3f80};
  std::uint16_t plane[16] = {1, 1};
  tile_scales(WeightFormat::kInt4, 1, 1, scale, reinterpret_cast<std::uint8_t*>(plane));
  EXPECT_EQ(plane[0], 0x3f80);
  EXPECT_EQ(plane[1], 0);
}

TEST(Numbers, HalvesWidenExactly) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc500), -5.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x83ff), -0x1.ff8p-15f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_TRUE(same(f16_to_float(0x8000), -0.0f));
  EXPECT_TRUE(std::isinf(f16_to_float(0xfc00)));
  EXPECT_TRUE(std::isnan(f16_to_float(0x7e01)));
  EXPECT_EQ(bf16_to_float(0xbfc0), -1.5f);
}

}  // namespace
}  // namespace wisp::kernels::test
