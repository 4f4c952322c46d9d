#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "model_fixture.hpp"

/// Guessed rows in a step: the bits of every row, what counts as chosen, and what a missing expert costs.
namespace wisp::compute {
namespace {

using testing::LoadedModel;

constexpr std::uint32_t kCtx = 128;
const std::string kPocket = std::string(WISP_TEST_DATA) + "/pocket-dictionary";

/// The experts of the files; writes down what is counted, and withholds what it is told to.
class WatchedExperts final : public ExpertSource {
 public:
  WatchedExperts(const std::string& folder, const model::Manifest& m)
      : files_(eval::FileExperts::open(folder, m).value()) {}
  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use, Fail fail,
             Cancelled cancelled) override {
    decode_ = decode;
    for (const ring::TouchMember& m : set) {
      counted[{layer, m.expert}] += m.rows;
      if (m.rows == 0) guessed_alone.push_back({layer, m.expert});
    }
    std::vector<ring::TouchMember> there;
    std::vector<std::uint32_t> place;
    for (std::uint32_t i = 0; i < set.size(); ++i) {
      if (withheld == std::pair{layer, std::uint32_t{set[i].expert}}) {
        fail(i, "withheld");
        continue;
      }
      there.push_back(set[i]);
      place.push_back(i);
    }
    const auto placed = [&](std::span<const ReadyExpert> ready) {
      std::vector<ReadyExpert> members(ready.begin(), ready.end());
      for (ReadyExpert& r : members) r.member = place[r.member];
      use(members);
    };
    const auto placed_fail = [&](std::uint32_t member, const std::string& why) { fail(place[member], why); };
    return files_.visit(layer, there, decode, placed, placed_fail, cancelled);
  }
  void kept(std::uint32_t layer, std::span<const ring::TouchMember> set) override {
    for (const ring::TouchMember& m : set) counted[{layer, m.expert}] += m.rows;
  }

  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> counted;  ///< (layer, expert) -> rows
  std::vector<std::pair<std::uint32_t, std::uint32_t>> guessed_alone;
  std::pair<std::uint32_t, std::uint32_t> withheld{UINT32_MAX, 0};
  bool decode_ = false;

 private:
  eval::FileExperts files_;
};

struct Trial {
  explicit Trial(LoadedModel& m, bool fast)
      : pool(2),
        kv((kCtx / 16 + 1) * m.page_bytes()),
        forward(m.manifest.spec, m.weights, {kv.data(), m.page_bytes(), kernels::KvFormat::kF32},
                kernels::best_kernels(), pool, 64, kCtx, fast),
        experts(m.path, m.manifest) {
    for (std::uint32_t p = kCtx / 16 + 1; p-- > 0;) pages.push_back(p);
  }
  /// Rows [start, start + count) of which `drafts` are guessed; logits from the last certain one on.
  std::vector<float> rows(const std::vector<std::uint32_t>& ids, std::uint32_t start, std::uint32_t count,
                          std::uint32_t drafts) {
    one = {{std::span(ids).subspan(start, count), pages, start, Logits::kLastRow, {}, 0, drafts}};
    EXPECT_TRUE(forward.run(one, experts, [] { return false; }));
    const auto l = forward.logits(0);
    return {l.begin(), l.end()};
  }

  ThreadPool pool;
  std::vector<std::byte> kv;
  Forward forward;
  WatchedExperts experts;
  std::vector<std::uint32_t> pages;
  std::vector<Sequence> one;
};

std::vector<std::uint32_t> text() {
  std::ifstream in(kPocket + "/reference.json");
  const auto reference = nlohmann::json::parse(in);
  std::vector<std::uint32_t> ids;
  for (const char* part : {"input_ids", "output_ids"})
    for (const auto& id : reference["prompts"][0][part]) ids.push_back(id);
  return ids;
}

class Drafts : public ::testing::TestWithParam<bool> {};

TEST_P(Drafts, EachRowHasTheBitsThatItHasAlone) {
  auto m = LoadedModel::convert(kPocket);
  const std::vector<std::uint32_t> ids = text();
  const std::uint32_t vocab = m->manifest.spec.vocab, begin = 13;
  ASSERT_GT(ids.size(), begin + 8);
  Trial plain(*m, GetParam()), tried(*m, GetParam());
  plain.rows(ids, 0, begin, 0);
  tried.rows(ids, 0, begin, 0);
  std::vector<std::uint32_t> wrong = ids;
  for (std::uint32_t at = begin + 3; at < wrong.size(); ++at) wrong[at] = (wrong[at] + 7) % vocab;
  // First with drafts that fail from the third on: their rows leave nothing behind.
  tried.rows(wrong, begin, 8, 7);
  const std::vector<float> all = tried.rows(ids, begin, 8, 7);
  ASSERT_EQ(all.size(), 8 * vocab);
  EXPECT_TRUE(tried.experts.decode_);
  for (std::uint32_t r = 0; r < 8; ++r) {
    const std::vector<float> alone = plain.rows(ids, begin + r, 1, 0);
    EXPECT_EQ(alone, std::vector<float>(all.begin() + r * vocab, all.begin() + (r + 1) * vocab)) << r;
  }
  EXPECT_EQ(tried.rows(ids, begin + 8, 1, 0), plain.rows(ids, begin + 8, 1, 0));
}

TEST_P(Drafts, OnlyRowsThatStandAreCounted) {
  auto m = LoadedModel::convert(kPocket);
  const std::vector<std::uint32_t> ids = text();
  Trial plain(*m, GetParam()), tried(*m, GetParam());
  for (Trial* r : {&plain, &tried}) r->rows(ids, 0, 13, 0);
  for (std::uint32_t r = 0; r < 4; ++r) plain.rows(ids, 13 + r, 1, 0);
  std::vector<std::uint32_t> wrong = ids;
  wrong[17] = (wrong[17] + 7) % m->manifest.spec.vocab;
  tried.rows(wrong, 13, 7, 6);
  EXPECT_FALSE(tried.experts.guessed_alone.empty());
  const std::uint32_t accepted = 3;
  tried.forward.keep_drafts(tried.one, {&accepted, 1}, tried.experts);
  std::erase_if(tried.experts.counted, [](const auto& entry) { return entry.second == 0; });
  EXPECT_EQ(tried.experts.counted, plain.experts.counted);
}

TEST_P(Drafts, AnExpertThatOnlyAGuessChoseFailsTheGuessAlone) {
  auto m = LoadedModel::convert(kPocket);
  const std::vector<std::uint32_t> ids = text();
  const std::uint32_t vocab = m->manifest.spec.vocab;
  Trial plain(*m, GetParam()), tried(*m, GetParam());
  for (Trial* r : {&plain, &tried}) r->rows(ids, 0, 13, 0);
  std::vector<std::uint32_t> wrong = ids;
  wrong[15] = (wrong[15] + 7) % vocab;
  tried.rows(wrong, 13, 3, 2);
  ASSERT_FALSE(tried.experts.guessed_alone.empty());
  tried.experts.withheld = tried.experts.guessed_alone.front();
  const std::vector<float> all = tried.rows(wrong, 13, 3, 2);
  EXPECT_EQ(tried.one[0].error, "");
  ASSERT_LT(tried.one[0].draft_failed, 2u);
  for (std::uint32_t r = 0; r <= tried.one[0].draft_failed; ++r) {
    const std::vector<float> alone = plain.rows(wrong, 13 + r, 1, 0);
    EXPECT_EQ(alone, std::vector<float>(all.begin() + r * vocab, all.begin() + (r + 1) * vocab)) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Profiles, Drafts, ::testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "fast" : "exact"); });

}  // namespace
}  // namespace wisp::compute
