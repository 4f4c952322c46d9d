#include "support.hpp"

namespace wisp::kernels::test {
namespace {

constexpr std::uint32_t kHeadDims[] = {1, 5, 8, 24, 64, 72, 128, 130, 512, 576};
constexpr std::uint32_t kCounts[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 500, 512, 513, 1040};
/// Numbers of a case: the largest width at the largest count shows nothing that either alone does not.
constexpr std::uint32_t kLargest = 140'000;

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16};

struct Pages {
  KvFormat format = KvFormat::kF32;
  std::vector<std::byte> data;
  std::vector<const std::byte*> table;

  KvRows rows(std::uint32_t count, std::uint32_t width) const { return {format, table.data(), count, width}; }
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
  Random random(run_seed());
  for (const KvFormat format : kFormats) {
    for (const std::uint32_t width : kHeadDims) {
      for (const std::uint32_t count : kCounts) {
        if (width * count > kLargest) continue;
        const Pages pages = make_pages(random, format, count, width);
        const KvRows keys = pages.rows(count, width);
        const auto n = 1 + static_cast<std::uint32_t>(random() % 8);
        const std::size_t q_stride = width + random() % 3, stride = count + 1 + random() % 3;
        const std::vector<float> q = numbers(random, n * q_stride);
        const auto run = [&](const Kernels& k) {
          std::vector<float> scores(n * stride, -7.0f);  // what lies behind the positions keeps the filler
          k.attention_scores(keys, q.data(), q_stride, n, 0.088388f, scores.data(), stride);
          return scores;
        };
        const std::vector<float> want = run(ref_kernels());
        EXPECT_EQ(want[count], -7.0f);
        for (const Kernels* k : other_tables(&Kernels::attention_scores))
          EXPECT_TRUE(same_bits(want, run(*k))) << name_of(k->isa) << ", " << name_of(format) << ", width "
                                                << width << ", positions " << count << ", queries " << n;
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
    ref_kernels().attention_scores(keys.rows(count, head_dim), q.data(), 0, 1, 0.5f, scores.data(), 0);
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
  Random random(run_seed());
  for (const KvFormat format : kFormats) {
    for (const std::uint32_t width : kHeadDims) {
      for (const std::uint32_t count : kCounts) {
        if (width * count > kLargest) continue;
        const Pages pages = make_pages(random, format, count, width);
        const KvRows values = pages.rows(count, width);
        const auto n = 1 + static_cast<std::uint32_t>(random() % 8);
        const std::size_t stride = count + random() % 3, out_stride = width + 1 + random() % 3;
        const std::vector<float> probs = numbers(random, n * stride);
        std::vector<std::uint32_t> counts(n);
        for (std::uint32_t& c : counts)
          c = random() % 2 == 0 ? count : static_cast<std::uint32_t>(random() % (count + 1));
        const auto run = [&](const Kernels& k) {
          std::vector<float> out(n * out_stride, -7.0f);
          k.attention_values(values, probs.data(), stride, counts.data(), n, out.data(), out_stride);
          return out;
        };
        const std::vector<float> want = run(ref_kernels());
        EXPECT_EQ(want[width], -7.0f);
        for (const Kernels* k : other_tables(&Kernels::attention_values))
          EXPECT_TRUE(same_bits(want, run(*k))) << name_of(k->isa) << ", " << name_of(format) << ", width "
                                                << width << ", positions " << count << ", queries " << n;
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
    ref_kernels().attention_values(values.rows(count, head_dim), probs.data(), 0, &count, 1, out.data(), 0);
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
    const std::uint32_t none = 0;
    k->attention_values({KvFormat::kF32, nullptr, 0, 5}, nullptr, 0, &none, 1, out.data(), 0);
    EXPECT_TRUE(same_bits(std::vector<float>(5, 0.0f), out));
  }
}

}  // namespace
}  // namespace wisp::kernels::test
