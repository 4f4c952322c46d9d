#include <limits>

#include "support.hpp"

namespace wisp::kernels::test {
namespace {

struct Shape {
  WeightFormat format;
  std::uint32_t group;
};

/// Rows of bytes with their memory.
struct Rows {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> offsets;
  Int8Rows view;
};

Rows quantised(const Kernels& k, WeightFormat f, std::span<const float> x, std::size_t stride,
               std::uint32_t rows, std::uint32_t cols) {
  Rows out;
  const std::uint32_t groups = groups_of(cols, 32);
  out.codes.resize(std::size_t{rows} * groups * 32, 99);
  out.scales.resize(std::size_t{rows} * groups);
  out.offsets.resize(out.scales.size());
  out.view = {groups, rows, out.codes.data(), out.scales.data(), out.offsets.data()};
  k.quantise(f, x.data(), stride, rows, cols, out.view);
  return out;
}

class Int8 : public ::testing::TestWithParam<Shape> {
 protected:
  Random random_{21};
  std::vector<float> run(const Kernels& k, const WeightView& w, const Rows& x, std::uint32_t tokens,
                         std::size_t stride, std::uint32_t begin, std::uint32_t end) {
    std::vector<float> y(tokens * stride, -7.0f);
    k.linear_int8(w, x.view, tokens, y.data(), stride, begin, end);
    return y;
  }
};

TEST_P(Int8, EveryTableGivesTheBitsOfRef) {
  Random random(run_seed());
  for (const std::uint32_t rows : {1u, 15u, 16u, 31u, 33u, 63u, 100u}) {
    for (const std::uint32_t cols : {1u, 5u, 7u, 31u, 32u, 33u, 100u, 481u, 512u, 513u, 545u, 1024u, 1100u}) {
      const Matrix m = coded_matrix(random, GetParam().format, rows, cols, GetParam().group);
      const std::uint32_t tokens = 1 + static_cast<std::uint32_t>(random()) % 9;
      const std::vector<float> x = numbers(random, tokens * (cols + 2));
      const Rows want_x = quantised(ref_kernels(), GetParam().format, x, cols + 2, tokens, cols);
      const std::vector<float> want = run(ref_kernels(), m.view, want_x, tokens, rows + 1, 0, tiles_of(rows));
      for (const Kernels* k : other_tables()) {
        const Rows got_x = quantised(*k, GetParam().format, x, cols + 2, tokens, cols);
        EXPECT_EQ(got_x.codes, want_x.codes);
        EXPECT_TRUE(same_bits(want_x.scales, got_x.scales));
        EXPECT_EQ(got_x.offsets, want_x.offsets);
        EXPECT_TRUE(same_bits(want, run(*k, m.view, got_x, tokens, rows + 1, 0, tiles_of(rows))))
            << name_of(k->isa) << ", " << rows << " x " << cols << ", tokens " << tokens;
      }
    }
  }
}

TEST_P(Int8, FollowsTheOrderOfCanon) {
  // Written anew from CANON.md, on decoded numbers.
  const std::uint32_t cols = 1100;
  const Matrix m = coded_matrix(random_, GetParam().format, 3, cols, GetParam().group);
  const std::vector<float> x = numbers(random_, cols);
  const Rows q = quantised(ref_kernels(), GetParam().format, x, cols, 1, cols);
  const std::vector<float> y = run(ref_kernels(), m.view, q, 1, 3, 0, 1);
  for (std::uint32_t r = 0; r < 3; ++r) {
    std::vector<float> blocks;
    for (std::uint32_t b = 0; b < cols; b += 512) {
      float a = 0.0f;
      for (std::uint32_t g = b; g < std::min(cols, b + 512); g += 32) {
        const std::uint32_t end = std::min(cols, g + 32);
        float largest = 0.0f;
        for (std::uint32_t k = g; k < end; ++k) largest = std::max(largest, std::abs(x[k]));
        const float inverse = 127.0f / largest, factor = factor_of(m, r, g);
        double products = 0.0;
        for (std::uint32_t k = g; k < end; ++k)
          products += std::nearbyint(m.at(r, k) / static_cast<double>(factor) * 2) / 2 *
                      static_cast<double>(std::nearbyint(x[k] * inverse));
        a = std::fma(static_cast<float>(products), factor * (largest / 127.0f), a);
      }
      blocks.push_back(a);
    }
    EXPECT_TRUE(same(y[r], (blocks[0] + blocks[1]) + blocks[2]));
  }
}

TEST_P(Int8, ARowDependsNeitherOnTokensNorOnTiles) {
  const std::uint32_t rows = 150, cols = 1100;
  const Matrix m = coded_matrix(random_, GetParam().format, rows, cols, GetParam().group);
  constexpr std::uint32_t kTokens = 37;
  const std::vector<float> x = numbers(random_, std::size_t{kTokens} * cols);
  for (const Kernels* k : all_kernels()) {
    const Rows all = quantised(*k, GetParam().format, x, cols, kTokens, cols);
    const std::vector<float> whole = run(*k, m.view, all, kTokens, rows, 0, tiles_of(rows));
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      const Rows one =
          quantised(*k, GetParam().format, std::span(x).subspan(std::size_t{t} * cols), cols, 1, cols);
      std::vector<float> y(rows);
      for (std::uint32_t tile = 0; tile < tiles_of(rows); ++tile)
        k->linear_int8(m.view, one.view, 1, y.data(), rows, tile, tile + 1);
      EXPECT_TRUE(same_bits(std::span(whole).subspan(std::size_t{t} * rows, rows), y));
    }
  }
}

TEST_P(Int8, ZerosTinyAndNotFiniteGroups) {
  const std::uint32_t cols = 200;
  const Matrix m = coded_matrix(random_, GetParam().format, 16, cols, GetParam().group);
  std::vector<float> x = numbers(random_, std::size_t{4} * cols);
  std::fill_n(x.begin(), 64, 0.0f);
  x[3] = 1e-44f;
  x[cols + 70] = std::numeric_limits<float>::quiet_NaN();
  x[2 * cols + 199] = -std::numeric_limits<float>::infinity();
  const Rows want_x = quantised(ref_kernels(), GetParam().format, x, cols, 4, cols);
  EXPECT_EQ(want_x.scales[0], 0.0f);
  EXPECT_EQ(want_x.codes[0], 0);
  const std::vector<float> want = run(ref_kernels(), m.view, want_x, 4, 16, 0, 1);
  for (std::uint32_t t = 0; t < 4; ++t) EXPECT_EQ(std::isnan(want[t * 16]), t == 1 || t == 2) << t;
  for (const Kernels* k : other_tables()) {
    const Rows got_x = quantised(*k, GetParam().format, x, cols, 4, cols);
    EXPECT_EQ(got_x.codes, want_x.codes);
    EXPECT_TRUE(same_bits(want, run(*k, m.view, got_x, 4, 16, 0, 1)));
  }
}

TEST_P(Int8, HalvesRoundToEven) {
  std::vector<float> x(32);  // the first number makes the scale 1
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = i == 0 ? 127.0f : (static_cast<float>(i) - 0.5f) * (i % 2 == 0 ? 1.0f : -1.0f);
  for (const Kernels* k : all_kernels()) {
    const Rows q = quantised(*k, GetParam().format, x, 32, 1, 32);
    for (std::uint32_t i = 0; i < 32; ++i) {
      const int even = i == 0 ? 127 : static_cast<int>(i / 2 * 2) * (i % 2 == 0 ? 1 : -1);
      EXPECT_EQ(q.codes[code_place(GetParam().format, i)], even) << name_of(k->isa) << ", " << x[i];
    }
  }
}

TEST_P(Int8, TheLargestCodesDoNotSaturate) {
  const std::uint32_t cols = 64;
  Matrix m = coded_matrix(random_, GetParam().format, 16, cols, GetParam().group);
  for (const int value : {0x00, 0x77, 0x7f, 0x80, 0x81, 0xff}) {
    const auto code = static_cast<std::uint8_t>(value);
    std::fill(m.codes.begin(), m.codes.end(), code);
    for (const float sign : {1.0f, -1.0f}) {
      const std::vector<float> x(cols, sign);
      const Rows q = quantised(ref_kernels(), GetParam().format, x, cols, 1, cols);
      for (const Kernels* k : other_tables())
        EXPECT_TRUE(same_bits(run(ref_kernels(), m.view, q, 1, 16, 0, 1), run(*k, m.view, q, 1, 16, 0, 1)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Int8,
                         ::testing::Values(Shape{WeightFormat::kInt4, 32}, Shape{WeightFormat::kInt4, 128},
                                           Shape{WeightFormat::kInt4Zero, 32},
                                           Shape{WeightFormat::kInt4Zero, 1120},
                                           Shape{WeightFormat::kMxfp4, 32}, Shape{WeightFormat::kInt8, 32}),
                         [](const auto& shape) {
                           return std::string(name_of(shape.param.format)) + "_" +
                                  std::to_string(shape.param.group);
                         });

}  // namespace
}  // namespace wisp::kernels::test
