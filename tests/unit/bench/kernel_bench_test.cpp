#include "services/bench/kernel_bench.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "services/bench/kernel_cases.hpp"

namespace wisp::bench {
namespace {

using kernels::WeightFormat;

TEST(KernelCases, EveryShapeFormatAndProfileOnce) {
  const auto all = kernel_cases("", {1, 2});
  ASSERT_TRUE(all.ok());
  // 7 shapes, 1 or 2 threads, 5 counts of rows; 7 ways to store in exact, 5 of them in fast too.
  EXPECT_EQ(all->size(), 7u * 2 * 5 * (7 + 5));
  std::set<std::string> names;
  for (const KernelCase& c : *all) names.insert(c.name());
  EXPECT_EQ(names.size(), all->size());
  EXPECT_TRUE(names.contains("gemv/int4-32/fast/2048x7168/1t"));
  EXPECT_TRUE(names.contains("gemm/bf16/exact/14336x4096/32rows/2t"));
  EXPECT_FALSE(names.contains("gemv/bf16/fast/14336x4096/2t"));
}

TEST(KernelCases, TheFilterIsARegularExpression) {
  const auto some = kernel_cases("gemv/(int4-64|fp8-128)/exact/768x2048", {1});
  ASSERT_TRUE(some.ok());
  ASSERT_EQ(some->size(), 2u);
  EXPECT_EQ(some->front().name(), "gemv/int4-64/exact/768x2048/1t");
  const auto none = kernel_cases("int5", {1}), broken = kernel_cases("int4(", {1});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().text.find("gemm/int4-32/fast/2048x7168/32rows/1t"), std::string::npos);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().text.find("regular expression"), std::string::npos);
}

TEST(KernelCases, TakeAThread) {
  const auto none = kernel_cases("", {1, 0});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().text.find("--threads 0"), std::string::npos);
}

/// Tiny weights: what is checked is that each case runs and is counted, not how fast it is.
TEST(KernelBench, MeasuresEachKindOfCase) {
  KernelBenchOptions o;
  o.pairs = 3;
  o.ring_bytes = 1 << 20;
  o.half_seconds = 1e-4;
  auto b = KernelBench::create(o);
  ASSERT_TRUE(b.ok()) << b.error().text;
  for (const auto& [format, group, fast] :
       {std::tuple{WeightFormat::kInt4, 32u, true}, std::tuple{WeightFormat::kInt8, 32u, false},
        std::tuple{WeightFormat::kMxfp4, 32u, true}, std::tuple{WeightFormat::kFp8, 128u, false},
        std::tuple{WeightFormat::kBf16, 0u, false}}) {
    for (const std::uint32_t tokens : {1u, 4u}) {
      const KernelCase c{format, group, fast, 96, 256, tokens, 1};
      SCOPED_TRACE(c.name());
      const auto f = b->measure(c);
      ASSERT_TRUE(f.ok()) << f.error().text;
      const std::uint64_t bytes =
          kernels::codes_bytes(format, 96, 256) + kernels::scales_bytes(format, 96, 256, group);
      EXPECT_EQ(f->matrix_bytes, bytes);
      EXPECT_GE(f->matrices * (bytes + 4096), o.ring_bytes);
      ASSERT_EQ(f->pairs.kernel.size(), 3u);
      ASSERT_EQ(f->pairs.roof.size(), 3u);
      EXPECT_GT(f->cpu_share, 0.0);
      for (const double n : f->pairs.kernel) EXPECT_GT(n, 0.0);
      for (const double n : f->pairs.roof) EXPECT_GT(n, 0.0);
    }
  }
  EXPECT_FALSE(b->measure({WeightFormat::kBf16, 0, false, 96, 256, 1, 4097}).ok());
}

}  // namespace
}  // namespace wisp::bench
