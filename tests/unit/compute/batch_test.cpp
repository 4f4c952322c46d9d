#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "model_fixture.hpp"
#include "recording_experts.hpp"

/// Several sequences in one step: what the step costs, and that nobody's bits know of the company.
namespace wisp::compute {
namespace {

using testing::LoadedModel;
using testing::RecordingExperts;

constexpr std::uint32_t kCtx = 128, kPagesEach = kCtx / 16;
const std::string kPocket = std::string(WISP_TEST_DATA) + "/pocket-dictionary";

/// Each product that an expert's matrix took part in: (its codes, first tile) -> times, rows.
struct Products {
  std::mutex mutex;
  std::map<std::pair<const void*, std::uint32_t>, std::pair<int, std::uint32_t>> seen;
  void add(const kernels::WeightView& w, std::uint32_t tile, std::uint32_t tokens) {
    const std::lock_guard lock(mutex);
    auto& [times, rows] = seen[{w.codes, tile}];
    ++times;
    rows += tokens;
  }
} products;

void counted_linear(const kernels::WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens,
                    float* y, std::size_t y_stride, std::uint32_t begin, std::uint32_t end) {
  if (w.format == kernels::WeightFormat::kInt4) products.add(w, begin, tokens);
  kernels::best_kernels().linear(w, x, x_stride, tokens, y, y_stride, begin, end);
}

/// Sequences over one pool of KV pages, each with its own.
class Batch {
 public:
  explicit Batch(LoadedModel& m)
      : pool_(2),
        kv_(8 * kPagesEach * m.page_bytes()),
        kernels_(kernels::best_kernels()),
        forward_(m.manifest.spec, m.weights, {kv_.data(), m.page_bytes(), kernels::KvFormat::kF32},
                 (kernels_.linear = counted_linear, kernels_), pool_, 128, kCtx),
        experts_(m.path, m.manifest) {
    for (std::uint32_t p = 0; p < 8 * kPagesEach; ++p) pages_.push_back(8 * kPagesEach - 1 - p);
  }
  struct Part {
    std::uint32_t place;  ///< whose pages
    std::span<const std::uint32_t> ids;
    std::uint32_t start;
  };
  /// One step of these parts; the logits of each last row.
  std::vector<std::vector<float>> step(const std::vector<Part>& parts) {
    std::vector<Sequence> sequences;
    for (const Part& p : parts)
      sequences.push_back({p.ids,
                           std::span(pages_).subspan(p.place * kPagesEach, kPagesEach),
                           p.start,
                           Logits::kLastRow,
                           {}});
    EXPECT_TRUE(forward_.run(sequences, experts_, [] { return false; }));
    std::vector<std::vector<float>> out;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(sequences[i].error, "");
      const auto l = forward_.logits(i);
      out.emplace_back(l.begin(), l.end());
    }
    return out;
  }
  RecordingExperts& experts() { return experts_; }

 private:
  ThreadPool pool_;
  std::vector<std::byte> kv_;
  kernels::Kernels kernels_;
  Forward forward_;
  RecordingExperts experts_;
  std::vector<std::uint32_t> pages_;
};

TEST(Batch, AnExpertThatSeveralRowsChooseIsReadAndMultipliedOnce) {
  auto m = LoadedModel::convert(kPocket);
  std::ifstream in(kPocket + "/reference.json");
  const auto reference = nlohmann::json::parse(in);
  std::vector<std::vector<std::uint32_t>> ids;
  for (std::size_t i = 0; i < 4; ++i) ids.push_back(reference["prompts"][i]["input_ids"]);
  // A fourth stream says the same as the first: all its experts are shared.
  ids[3] = ids[0];
  Batch batch(*m);
  const std::uint32_t layers = static_cast<std::uint32_t>(m->manifest.spec.layers.size());
  const std::uint32_t top_k = m->manifest.spec.router.top_k;

  std::vector<std::vector<float>> alone;
  std::vector<std::set<std::uint32_t>> chosen(layers);
  std::vector<Batch::Part> decode;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto n = static_cast<std::uint32_t>(ids[i].size());
    batch.step({{i, std::span(ids[i]).first(n - 1), 0}});
    batch.experts().take();
    const Batch::Part last{i, std::span(ids[i]).last(1), n - 1};
    alone.push_back(batch.step({last})[0]);
    for (const auto& v : batch.experts().take())
      for (const auto& [expert, rows] : v.rows) chosen[v.layer].insert(expert);
    decode.push_back(last);
  }
  // Files' extents share their memory from one call to the next, so codes are told apart within one.
  std::size_t multiplied = 0;
  batch.experts().after_use = [&] {
    for (const auto& [what, n] : products.seen) EXPECT_EQ(n.first, 1) << "tiles were gone through twice";
    multiplied += products.seen.size();
    products.seen.clear();
  };
  products.seen.clear();
  EXPECT_EQ(batch.step(decode), alone) << "company changed the bits";
  const auto visits = batch.experts().take();
  ASSERT_EQ(visits.size(), layers) << "one visit a layer";
  std::size_t in_all = 0;
  for (const auto& v : visits) {
    EXPECT_TRUE(v.distinct);
    std::set<std::uint32_t> asked;
    std::uint32_t rows = 0;
    for (const auto& [expert, n] : v.rows) {
      asked.insert(expert);
      rows += n;
      EXPECT_EQ(v.uses.at(expert), 1u) << "handed over once";
    }
    EXPECT_EQ(asked, chosen[v.layer]);
    EXPECT_EQ(rows, 4 * top_k);
    EXPECT_LE(asked.size(), 3 * top_k);
    in_all += asked.size();
  }
  EXPECT_LT(in_all, std::size_t{4} * top_k * layers);
  EXPECT_GT(multiplied, in_all);
}

TEST(Batch, AChunkOfAPromptBesideStreamsChangesNobodysBits) {
  auto m = LoadedModel::convert(kPocket);
  Batch batch(*m);
  std::vector<std::uint32_t> a(40), b(90);
  for (std::uint32_t i = 0; i < a.size(); ++i) a[i] = i * 37 % 4093;
  for (std::uint32_t i = 0; i < b.size(); ++i) b[i] = (i * 53 + 11) % 4093;
  const auto of = [](const std::vector<std::uint32_t>& ids, std::uint32_t from, std::uint32_t n) {
    return std::span(ids).subspan(from, n);
  };
  batch.step({{0, of(a, 0, 39), 0}});
  const auto want_a = batch.step({{0, of(a, 39, 1), 39}})[0];
  const auto want_b = batch.step({{1, of(b, 0, 90), 0}})[0];
  for (const std::uint32_t cut : {1u, 15u, 16u, 17u, 64u, 89u}) {
    batch.step({{2, of(a, 0, 39), 0}, {3, of(b, 0, cut), 0}});
    const auto both = batch.step({{3, of(b, cut, 90 - cut), cut}, {2, of(a, 39, 1), 39}});
    EXPECT_EQ(both[0], want_b) << "cut at " << cut;
    EXPECT_EQ(both[1], want_a) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace wisp::compute
