#include "support.hpp"

namespace wisp::kernels::test {
namespace {

constexpr std::uint32_t kHeadDims[] = {1, 5, 8, 24, 64, 72, 128, 130, 512, 576};
constexpr std::uint32_t kCounts[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 500, 512, 513, 1040};

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16};

struct Pages {
  KvFormat format = KvFormat::kF32;
  std::vector<std::byte> data;
  std::vector<const std::byte*> table;

  /// Number `at` of the page that holds `position`.
  double at(std::uint32_t position, std::size_t at) const {
    const std::byte* number = table[position / kPageTokens] + at * kv_bytes(format);
    const WeightFormat plain = format == KvFormat::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
    return static_cast<double>(plain_to_float(plain, number));
  }
};

Pages make_pages(Random& random, KvFormat format, std::uint32_t count, std::uint32_t head_dim) {
  const std::size_t page = std::size_t{kPageTokens} * head_dim;
  const std::size_t n = (count + kPageTokens - 1) / kPageTokens;
  Pages pages{format, std::vector<std::byte>(n * page * kv_bytes(format)), std::vector<const std::byte*>(n)};
  const std::vector<float> values = numbers(random, n * page);
  store_kv(format, pages.data.data(), 1, values.data(), values.size());
  for (std::size_t i = 0; i < n; ++i)
    pages.table[n - 1 - i] = pages.data.data() + i * page * kv_bytes(format);  // pages lie anywhere
  return pages;
}

TEST(AttentionScores, EveryTableGivesTheBitsOfRef) {
  Random random(1);
  for (const KvFormat format : kFormats) {
    for (const std::uint32_t head_dim : kHeadDims) {
      for (const std::uint32_t count : kCounts) {
        const Pages keys = make_pages(random, format, count, head_dim);
        const std::vector<float> q = numbers(random, head_dim);
        std::vector<float> want(count + 1, -7.0f);
        ref_kernels().attention_scores(q.data(), keys.format, keys.table.data(), count, head_dim, 0.088388f,
                                       want.data());
        EXPECT_EQ(want[count], -7.0f);
        for (const Kernels* k : other_tables()) {
          std::vector<float> got(count + 1, -7.0f);
          k->attention_scores(q.data(), keys.format, keys.table.data(), count, head_dim, 0.088388f,
                              got.data());
          EXPECT_TRUE(same_bits(want, got))
              << name_of(format) << ", head " << head_dim << ", positions " << count;
        }
      }
    }
  }
}

TEST(AttentionScores, AreCloseToTheExactSums) {
  Random random(2);
  const std::uint32_t head_dim = 576;
  const std::uint32_t count = 40;
  const std::vector<float> q = numbers(random, head_dim);
  for (const KvFormat format : kFormats) {
    const Pages keys = make_pages(random, format, count, head_dim);
    std::vector<float> scores(count);
    ref_kernels().attention_scores(q.data(), keys.format, keys.table.data(), count, head_dim, 0.5f,
                                   scores.data());
    for (std::uint32_t p = 0; p < count; ++p) {
      double sum = 0;
      double size = 0;
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        const double term = static_cast<double>(q[d]) * keys.at(p, d * 16 + p % 16);
        sum += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(static_cast<double>(scores[p]), 0.5 * sum, size * head_dim * 0x1p-24);
    }
  }
}

TEST(AttentionValues, EveryTableGivesTheBitsOfRef) {
  Random random(3);
  for (const KvFormat format : kFormats) {
    for (const std::uint32_t head_dim : kHeadDims) {
      for (const std::uint32_t count : kCounts) {
        const Pages values = make_pages(random, format, count, head_dim);
        const std::vector<float> probs = numbers(random, count);
        std::vector<float> want(head_dim + 1, -7.0f);
        ref_kernels().attention_values(probs.data(), values.format, values.table.data(), count, head_dim,
                                       want.data());
        EXPECT_EQ(want[head_dim], -7.0f);
        for (const Kernels* k : other_tables()) {
          std::vector<float> got(head_dim + 1, -7.0f);
          k->attention_values(probs.data(), values.format, values.table.data(), count, head_dim, got.data());
          EXPECT_TRUE(same_bits(want, got))
              << name_of(format) << ", head " << head_dim << ", positions " << count;
        }
      }
    }
  }
}

TEST(AttentionValues, AreCloseToTheExactSums) {
  Random random(4);
  const std::uint32_t head_dim = 72;
  const std::uint32_t count = 1040;
  const std::vector<float> probs = numbers(random, count);
  for (const KvFormat format : kFormats) {
    const Pages values = make_pages(random, format, count, head_dim);
    std::vector<float> out(head_dim);
    ref_kernels().attention_values(probs.data(), values.format, values.table.data(), count, head_dim,
                                   out.data());
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      double sum = 0;
      double size = 0;
      for (std::uint32_t p = 0; p < count; ++p) {
        const double term = static_cast<double>(probs[p]) * values.at(p, (p % 16) * head_dim + d);
        sum += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(static_cast<double>(out[d]), sum, size * count * 0x1p-24);
    }
  }
}

TEST(AttentionValues, NoPositionsGiveZero) {
  for (const Kernels* k : all_kernels()) {
    std::vector<float> out(5, 1.0f);
    k->attention_values(nullptr, KvFormat::kF32, nullptr, 0, 5, out.data());
    EXPECT_TRUE(same_bits(std::vector<float>(5, 0.0f), out));
  }
}

}  // namespace
}  // namespace wisp::kernels::test
