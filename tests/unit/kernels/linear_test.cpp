#include <limits>
#include <set>

#include "support.hpp"

namespace wisp::kernels::test {
namespace {

struct Shape {
  WeightFormat format;
  std::uint32_t group;
};

Matrix make(Random& random, Shape s, std::uint32_t rows, std::uint32_t cols) {
  return s.group == 0 ? plain_matrix(random, s.format, rows, cols)
                      : coded_matrix(random, s.format, rows, cols, s.group);
}

std::string name(const ::testing::TestParamInfo<Shape>& info) {
  const std::string format(name_of(info.param.format));
  return info.param.group == 0 ? format : format + "_" + std::to_string(info.param.group);
}

class Linear : public ::testing::TestWithParam<Shape> {
 protected:
  Random random_{7};
};

constexpr std::uint32_t kRows[] = {1, 15, 16, 31, 33, 63, 100};
constexpr std::uint32_t kCols[] = {1,   2,   7,   8,   9,   31,  32,  33,   63,   100,
                                   127, 256, 481, 511, 512, 513, 545, 1000, 1024, 1100};

/// y [tokens, stride] by one table; what lies outside the rows asked for keeps the filler.
std::vector<float> run(const Kernels& k, const WeightView& w, std::span<const float> x, std::size_t x_stride,
                       std::uint32_t tokens, std::size_t y_stride, std::uint32_t begin, std::uint32_t end) {
  std::vector<float> y(tokens * y_stride, -7.0f);
  k.linear(w, x.data(), x_stride, tokens, y.data(), y_stride, begin, end);
  return y;
}

TEST_P(Linear, EveryTableGivesTheBitsOfRef) {
  Random random(run_seed());
  for (const std::uint32_t rows : kRows) {
    for (const std::uint32_t cols : kCols) {
      const Matrix m = make(random, GetParam(), rows, cols);
      const std::uint32_t tokens = 1 + static_cast<std::uint32_t>(random()) % 9;
      const std::size_t x_stride = cols + random() % 3;
      const std::size_t y_stride = rows + random() % 3;
      const std::vector<float> x = numbers(random, tokens * x_stride);
      const std::uint32_t tiles = tiles_of(rows);
      const std::uint32_t begin = static_cast<std::uint32_t>(random()) % tiles;
      for (const std::uint32_t first : std::set{0u, begin}) {
        const std::vector<float> want =
            run(ref_kernels(), m.view, x, x_stride, tokens, y_stride, first, tiles);
        for (const Kernels* k : other_tables(&Kernels::linear)) {
          EXPECT_TRUE(same_bits(want, run(*k, m.view, x, x_stride, tokens, y_stride, first, tiles)))
              << name_of(k->isa) << ", " << rows << " x " << cols << ", tokens " << tokens << ", tiles from "
              << first;
        }
      }
    }
  }
}

TEST_P(Linear, ARowDependsNeitherOnTokensNorOnTiles) {
  const std::uint32_t rows = 150;
  const std::uint32_t cols = 1100;
  const Matrix m = make(random_, GetParam(), rows, cols);
  constexpr std::uint32_t kTokens = 21;
  const std::vector<float> x = numbers(random_, std::size_t{kTokens} * cols);
  for (const Kernels* k : all_kernels()) {
    const std::vector<float> whole = run(*k, m.view, x, cols, kTokens, rows, 0, tiles_of(rows));
    for (const std::uint32_t tokens : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 15u, 17u, kTokens}) {
      std::vector<float> y(std::size_t{tokens} * rows, -7.0f);
      for (std::uint32_t tile = 0; tile < tiles_of(rows);) {
        const std::uint32_t end =
            std::min(tile + 1 + static_cast<std::uint32_t>(random_()) % 6, tiles_of(rows));
        k->linear(m.view, x.data(), cols, tokens, y.data(), rows, tile, end);
        tile = end;
      }
      EXPECT_TRUE(same_bits(std::span(whole).first(y.size()), y)) << name_of(k->isa) << ", tokens " << tokens;
    }
  }
}

TEST_P(Linear, IsCloseToTheExactSum) {
  for (const std::uint32_t cols : {5u, 100u, 1100u}) {
    const Matrix m = make(random_, GetParam(), 20, cols);
    const std::vector<float> x = numbers(random_, cols);
    const std::vector<float> y = run(ref_kernels(), m.view, x, cols, 1, 20, 0, 2);
    for (std::uint32_t r = 0; r < 20; ++r) {
      double sum = 0;
      double size = 0;
      for (std::uint32_t c = 0; c < cols; ++c) {
        sum += m.at(r, c) * static_cast<double>(x[c]);
        size += std::abs(m.at(r, c) * static_cast<double>(x[c]));
      }
      // n steps of half a unit each bound the error; a mixed-up row, column or scale is far outside.
      EXPECT_NEAR(static_cast<double>(y[r]), sum, size * cols * 0x1p-24) << "row " << r << " of " << cols;
    }
  }
}

TEST_P(Linear, FollowsTheOrderOfCanon) {
  // Written anew from CANON.md, on decoded numbers; a product of a code and its scale is exact in double.
  const std::uint32_t cols = 1100;
  const Matrix m = make(random_, GetParam(), 3, cols);
  const std::vector<float> x = numbers(random_, cols);
  const std::vector<float> y = run(ref_kernels(), m.view, x, cols, 1, 3, 0, 1);
  const bool coded = GetParam().group != 0;
  for (std::uint32_t r = 0; r < 3; ++r) {
    std::vector<float> blocks;
    for (std::uint32_t b = 0; b < cols; b += 512) {
      float a = 0.0f;
      const std::uint32_t end = std::min(cols, b + 512);
      for (std::uint32_t g = b; g < end; g += 32) {
        const float scale = coded ? factor_of(m, r, g) : 1.0f;
        float t = 0.0f;
        for (std::uint32_t k = g; k < std::min(end, g + 32); ++k) {
          const auto weight = static_cast<float>(m.at(r, k) / static_cast<double>(scale));
          if (coded) {
            t = std::fma(weight, x[k], t);
          } else {
            a = std::fma(weight, x[k], a);
          }
        }
        if (coded) a = std::fma(t, scale, a);
      }
      blocks.push_back(a);
    }
    EXPECT_TRUE(same(y[r], (blocks[0] + blocks[1]) + blocks[2]));
  }
}

TEST_P(Linear, CarriesNanAndInfinityInTheirOwnTokenOnly) {
  const Matrix m = make(random_, GetParam(), 33, 600);
  std::vector<float> x = numbers(random_, std::size_t{3} * 600);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[600 + 590] = std::numeric_limits<float>::infinity();
  const std::vector<float> want = run(ref_kernels(), m.view, x, 600, 3, 33, 0, 3);
  EXPECT_TRUE(std::isnan(want[0]));
  EXPECT_FALSE(std::isfinite(want[33]));
  EXPECT_TRUE(std::isfinite(want[66]));
  for (const Kernels* k : other_tables()) {
    EXPECT_TRUE(same_bits(want, run(*k, m.view, x, 600, 3, 33, 0, 3)));
  }
}

TEST_P(Linear, KeepsSubnormals) {
  const Matrix m = make(random_, GetParam(), 16, 70);
  std::vector<float> x = numbers(random_, 70);
  for (float& v : x) v *= 0x1p-140f;
  const std::vector<float> want = run(ref_kernels(), m.view, x, 70, 1, 16, 0, 1);
  EXPECT_NE(want[0], 0.0f);
  for (const Kernels* k : other_tables()) EXPECT_TRUE(same_bits(want, run(*k, m.view, x, 70, 1, 16, 0, 1)));
}

/// A chain that rounded to -0 stays there while weights of -0 are added, and +0 would lift it. Shown by a
/// block that is -0 before the second group comes.
TEST(SignedZero, AWeightOfMinusZeroIsNoPlusZero) {
  struct Case {
    WeightFormat format;
    std::uint8_t least, zero;  // bytes of codes: the least negative number in front, -0
    float least_product;       // x for which that number gives -2^-149
  };
  for (const Case& c :
       {Case{WeightFormat::kMxfp4, 0x89, 0x88, 0x1p-148f}, Case{WeightFormat::kFp8, 0x81, 0x80, 0x1p-140f}}) {
    const std::size_t pitch = row_bytes(c.format, 64), planes = codes_bytes(c.format, 16, 64);
    std::vector<std::uint8_t> stored(16 * pitch, c.zero), codes(planes);
    for (std::size_t half = 0; half < 32 * pitch / 2; half += pitch / 2) stored[half] = c.least;
    tile_codes(c.format, 16, 64, stored.data(), codes.data());
    std::vector<std::uint8_t> scales(scales_bytes(c.format, 16, 64, 32), 126);  // MXFP4: 1/2
    const float half = 0.5f;
    if (c.format == WeightFormat::kFp8)
      for (std::size_t i = 0; i < scales.size(); i += 4) std::memcpy(scales.data() + i, &half, 4);
    const WeightView w{.format = c.format,
                       .rows = 16,
                       .cols = 64,
                       .group = 32,
                       .codes = codes.data(),
                       .scales = scales.data()};
    std::vector<float> x(64, c.least_product / 2);
    x[0] = c.least_product;
    for (const Kernels* k : all_kernels())
      EXPECT_TRUE(same_bits(std::vector<float>(16, -0.0f), run(*k, w, x, 64, 1, 16, 0, 1)))
          << name_of(k->isa) << ", " << name_of(c.format);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Linear,
                         ::testing::Values(Shape{WeightFormat::kF32, 0}, Shape{WeightFormat::kBf16, 0},
                                           Shape{WeightFormat::kF16, 0}, Shape{WeightFormat::kInt4, 32},
                                           Shape{WeightFormat::kInt4, 64}, Shape{WeightFormat::kInt4, 128},
                                           Shape{WeightFormat::kMxfp4, 32},
                                           Shape{WeightFormat::kInt4Zero, 32},
                                           Shape{WeightFormat::kInt4Zero, 128},
                                           Shape{WeightFormat::kInt4Zero, 1120},
                                           Shape{WeightFormat::kInt8, 32}, Shape{WeightFormat::kFp8, 128},
                                           Shape{WeightFormat::kFp8, 32}),
                         name);

}  // namespace
}  // namespace wisp::kernels::test
