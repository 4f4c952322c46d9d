#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "model_fixture.hpp"
#include "oracle_cases.hpp"
#include "oracle_checks.hpp"
#include "recording_experts.hpp"

/// How far `fast` moves the logits of every oracle's model (the table of kernels/ACCURACY.md).
namespace wisp::compute {
namespace {

using kernels::WeightFormat;
using testing::kData;
using testing::LoadedModel;
using testing::RecordingExperts;

constexpr std::uint32_t kCtx = 128;

/// A model in one profile, row by row.
class Rows {
 public:
  Rows(LoadedModel& m, bool fast)
      : pool_(1),
        kv_((kCtx / 16 + 1) * m.page_bytes()),
        forward_(m.manifest.spec, m.weights, {kv_.data(), m.page_bytes(), kernels::KvFormat::kF32},
                 kernels::best_kernels(), pool_, 1, kCtx, fast),
        experts_(m.path, m.manifest) {
    for (std::uint32_t p = 0; p < kCtx / 16 + 1; ++p) pages_.push_back(p);
  }
  struct Row {
    std::vector<float> logits;
    std::vector<std::vector<std::uint32_t>> experts;  ///< by layer with experts
  };
  Row row(const std::vector<std::uint32_t>& ids, std::uint32_t at) {
    std::vector<Sequence> one{{std::span(ids).subspan(at, 1), pages_, at, Logits::kLastRow, {}}};
    if (!forward_.run(one, experts_, [] { return false; })) throw std::runtime_error("cancelled");
    Row out;
    out.logits.assign(forward_.logits(0).begin(), forward_.logits(0).end());
    for (const auto& v : experts_.take()) {
      auto& e = out.experts.emplace_back();
      for (const auto& [expert, rows] : v.rows) e.push_back(expert);
    }
    return out;
  }
  /// What it has seen so far becomes what `other` saw.
  void remember(const Rows& other) { std::copy(other.kv_.begin(), other.kv_.end(), kv_.begin()); }

 private:
  ThreadPool pool_;
  std::vector<std::byte> kv_;
  Forward forward_;
  RecordingExperts experts_;
  std::vector<std::uint32_t> pages_;
};

/// Vectors that are rounded to bytes one after the other on the way from the embedding to the logits.
std::uint32_t roundings(const model::Manifest& m) {
  std::uint32_t n = 0;
  for (const auto& [name, t] : m.dense)
    n += t.tiled && kernels::takes_int8(t.format) &&
         (name.ends_with("attn.q") || name.ends_with("attn.q_a") || name.ends_with("attn.o") ||
          name.ends_with("ffn.gate") || name.ends_with("ffn.down") || name == "head");
  for (const model::LayerExperts& layer : m.experts)
    if (!layer.extents.empty())
      n += (kernels::takes_int8(m.spec.expert.gate.format) ? 1 : 0) +
           (kernels::takes_int8(m.spec.expert.down.format) ? 1 : 0);
  return n;
}

class FastError : public ::testing::TestWithParam<std::string> {};

/// A row of logits against another: largest difference, that over the largest logit, whether one token is
/// first.
struct Distance {
  double off = 0.0, share = 0.0, top = 0.0;
  bool same_first = false;
};
Distance distance(const std::vector<float>& want, const std::vector<float>& got) {
  Distance d;
  for (std::size_t v = 0; v < want.size(); ++v) {
    d.off = std::max(d.off, std::abs(static_cast<double>(got[v]) - static_cast<double>(want[v])));
    d.top = std::max(d.top, std::abs(static_cast<double>(want[v])));
  }
  d.share = d.off / d.top;
  d.same_first = std::max_element(want.begin(), want.end()) - want.begin() ==
                 std::max_element(got.begin(), got.end()) - got.begin();
  return d;
}

double middle_of(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

/// Rounding a group of 32 numbers to bytes moves each by at most m / 254, m the largest of them. So the error
/// of the group, as a vector, is at most sqrt(32) m / 254, and the group is no shorter than m: a rounded
/// vector is off by at most sqrt(32) / 254 of its length, always. n such errors, one after the other, add up
/// like independent ones to sqrt(n) times that if no block magnifies them. A router or an indexer that turns
/// at a near tie makes another row of it, and of those that look back on it: so what is held to the bound are
/// rows that look back on the exact profile's keys and values ("led"). Blocks of random weights do magnify in
/// some rows, by 1.8 at most here: the worst row that chose the same experts is given kMagnified.
constexpr double kMagnified = 2.5;

TEST_P(FastError, LogitsStayWithinTheBoundOfRounding) {
  const std::string folder = kData + "/oracle/" + GetParam();
  const auto ids = testing::ids_of(folder);
  auto native = LoadedModel::convert(folder);
  const bool rounds = multiplies_bytes(native->manifest);
  // Where the checkpoint has nothing that takes bytes, everything is stored in int8 first.
  const model::TargetFormats int8{WeightFormat::kInt8, WeightFormat::kInt8};
  auto m = rounds ? std::move(native) : LoadedModel::convert(folder, int8);
  ASSERT_TRUE(multiplies_bytes(m->manifest));
  Rows exact(*m, false), fast(*m, true), guided(*m, true);
  const double bound = std::sqrt(32.0) / 254.0 * std::sqrt(static_cast<double>(roundings(m->manifest)));
  Distance worst;
  double calm = 0.0;
  std::uint32_t turned = 0, same_first = 0;
  std::vector<double> shares, guided_shares;
  for (std::uint32_t p = 0; p < ids.size(); ++p) {
    guided.remember(exact);
    const auto want = exact.row(ids, p), free = fast.row(ids, p), led = guided.row(ids, p);
    const Distance d = distance(want.logits, free.logits);
    if (d.off > worst.off) worst = d;
    same_first += d.same_first ? 1 : 0;
    shares.push_back(d.share);
    const Distance g = distance(want.logits, led.logits);
    guided_shares.push_back(g.share);
    if (want.experts != led.experts)
      ++turned;
    else
      calm = std::max(calm, g.share);
  }
  std::printf("| %s | %s | %u | %.3g | %.3g | %.4f | %u of %zu | %.4f | %.4f | %u | %.4f |\n",
              GetParam().c_str(), rounds ? "as stored" : "int8", roundings(m->manifest), worst.off, worst.top,
              middle_of(shares), same_first, shares.size(), middle_of(guided_shares), calm, turned, bound);
  EXPECT_GT(worst.off, 0.0) << "nothing was rounded";
  EXPECT_LT(middle_of(guided_shares), bound);
  // What an indexer leaves out is not seen from here.
  if (m->manifest.spec.attention.indexer.heads == 0) {
    EXPECT_LT(calm, kMagnified * bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, FastError, ::testing::ValuesIn(testing::cases()),
                         [](const auto& i) { return i.param; });

}  // namespace
}  // namespace wisp::compute
