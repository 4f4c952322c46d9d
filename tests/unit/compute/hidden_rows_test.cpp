#include <gtest/gtest.h>

#include <cstring>

#include "../speculator/draft_head_fixture.hpp"
#include "model_fixture.hpp"
#include "wisp/kernels/number.hpp"

/// The rows that a draft head is fed with, as compute leaves them in the KV pages, beside those of
/// transformers (tests/oracle/draft_heads.py).
namespace wisp::compute {
namespace {

using namespace speculator::head_testing;

class HiddenRows : public ::testing::TestWithParam<const char*> {
 protected:
  HiddenRows() : model(LoadedModel::convert(kData + "/oracle/" + GetParam())), oracle(GetParam()) {}

  /// Computes the oracle's ids in calls of `step` rows, into pages with hidden rows or without.
  std::vector<float> run(bool hidden, std::uint32_t step, std::vector<std::byte>& kv) {
    const auto count = static_cast<std::uint32_t>(oracle.ids.size());
    const std::uint64_t plain = model->page_bytes();
    KvPages pages{nullptr, plain, kernels::KvFormat::kF32, 0};
    if (hidden) {
      pages.hidden_at = plain;
      pages.page_bytes += std::uint64_t{kernels::kPageTokens} * width() * 2;
    }
    kv.assign(kPages * pages.page_bytes, std::byte{0});
    pages.base = kv.data();
    ThreadPool pool(2);
    pool.share_everything();
    Forward forward(model->manifest.spec, model->weights, pages, kernels::best_kernels(), pool, 64, 128);
    eval::FileExperts experts = eval::FileExperts::open(model->path, model->manifest).value();
    std::vector<float> logits;
    for (std::uint32_t at = 0; at < count; at += step) {
      const std::uint32_t n = std::min(step, count - at);
      std::vector<Sequence> one{{std::span(oracle.ids).subspan(at, n), order, at, Logits::kAllRows, {}}};
      EXPECT_TRUE(forward.run(one, experts, [] { return false; }));
      logits.insert(logits.end(), forward.logits(0).begin(), forward.logits(0).end());
    }
    at_ = pages;
    return logits;
  }
  std::vector<float> row(std::uint32_t position) const {
    const std::byte* in = at_.hidden(order[position / 16], position % 16, width());
    std::vector<float> out(width());
    for (float& x : out) {
      std::uint16_t half;
      std::memcpy(&half, in, sizeof half);
      in += sizeof half;
      x = kernels::bf16_to_float(half);
    }
    return out;
  }
  std::uint32_t width() const { return model->manifest.spec.hidden; }

  static constexpr std::uint32_t kPages = 6;
  const std::vector<std::uint32_t> order{4, 0, 5, 2};
  std::unique_ptr<LoadedModel> model;
  Oracle oracle;
  KvPages at_;
};

TEST_P(HiddenRows, AreThoseBehindTheLastNorm) {
  std::vector<std::byte> kv, plain_kv;
  const std::vector<float> plain = run(false, 64, plain_kv);
  for (const std::uint32_t step : {64u, 1u, 7u}) {
    EXPECT_EQ(run(true, step, kv), plain) << "logits, in calls of " << step;
    for (std::uint32_t p = 0; p < oracle.ids.size(); ++p) {
      const auto want = std::span(oracle.hidden).subspan(std::size_t{p} * width(), width());
      EXPECT_LE(difference(row(p), want), 1.0f / 256) << "position " << p;
    }
  }
  // KV rows lie as before, in front of them.
  for (const std::uint32_t p : order)
    EXPECT_EQ(std::memcmp(kv.data() + p * at_.page_bytes, plain_kv.data() + p * at_.hidden_at, at_.hidden_at),
              0)
        << "page " << p;
}

INSTANTIATE_TEST_SUITE_P(Cases, HiddenRows, ::testing::Values("deepseek_v3_published", "glm4_moe_published"),
                         [](const auto& i) { return std::string(i.param); });

}  // namespace
}  // namespace wisp::compute
