#include "services/speculator/draft_model.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "draft_fixture.hpp"

namespace wisp::speculator {
namespace {

using compute::testing::Engine;
using testing::kData;
using testing::LoadedModel;
using testing::open_draft;
using testing::plan_of;
using testing::proposed;
using testing::some_ids;
using Ids = std::vector<std::uint32_t>;

const LoadedModel& pocket() {
  static const auto m = LoadedModel::convert(kData + "/pocket-dictionary");
  return *m;
}

std::uint32_t argmax(const std::vector<float>& v) {
  return static_cast<std::uint32_t>(std::max_element(v.begin(), v.end()) - v.begin());
}

/// The greedy continuation by the forward pass alone: the whole sequence anew for each token, experts from
/// the files.
Ids continuation(LoadedModel& m, Ids ids, std::uint32_t k, kernels::KvFormat kv = kernels::KvFormat::kF32) {
  Ids out;
  while (out.size() < k) {
    Engine engine(m, kernels::best_kernels(), 1, 128, 128, false, kv, m.manifest.profile == "fast");
    out.push_back(argmax(engine.prompt(ids, 128)));
    ids.push_back(out.back());
  }
  return out;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Published greedy answers, from every position of them.
TEST(DraftModel, ProposesTheBundledModelsGreedyAnswers) {
  const auto draft = open_draft(plan_of(pocket()));
  std::ifstream in(kData + "/pocket-dictionary/reference.json");
  const auto reference = nlohmann::json::parse(in);
  ASSERT_EQ(reference["prompts"].size(), 12u);
  std::uint32_t place = 0;
  for (const auto& prompt : reference["prompts"]) {
    Ids ids = prompt["input_ids"];
    const Ids want = prompt["output_ids"];
    for (std::size_t n = 0; n < want.size(); ++n) {
      const std::size_t k = std::min<std::size_t>(ring::kMostDrafted, want.size() - n);
      const auto first = want.begin() + static_cast<std::ptrdiff_t>(n);
      ASSERT_EQ(proposed(*draft, place, ids, static_cast<std::uint32_t>(k)),
                Ids(first, first + static_cast<std::ptrdiff_t>(k)))
          << prompt["prompt"] << ", token " << n;
      ids.push_back(want[n]);
    }
    place ^= 1;
  }
}

struct Case {
  const char* name;
  const char* kv;
};

/// Every kind of attention, of router and of weights, with all experts in memory.
class DraftFamilies : public ::testing::TestWithParam<Case> {};

TEST_P(DraftFamilies, ProposeWhatTheForwardPassWould) {
  const auto m = LoadedModel::convert(kData + "/oracle/" + GetParam().name);
  const auto draft = open_draft(plan_of(*m, 64, 2, GetParam().kv));
  const auto kv = GetParam().kv == std::string("bf16") ? kernels::KvFormat::kBf16 : kernels::KvFormat::kF32;
  for (const std::uint32_t length : {1u, 15u, 16u, 17u, 40u}) {
    const Ids ids = some_ids(length, m->manifest.spec.vocab, length);
    EXPECT_EQ(proposed(*draft, 0, ids), continuation(*m, ids, ring::kMostDrafted, kv)) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DraftFamilies,
                         ::testing::Values(Case{"dense_layers", "f32"}, Case{"int4", "bf16"},
                                           Case{"untied_bf16", "f32"}, Case{"gpt_oss_mxfp4", "f32"},
                                           Case{"mixtral_window", "bf16"}, Case{"qwen2_moe_dense", "f32"},
                                           Case{"deepseek_v3_published", "f32"},
                                           Case{"glm_moe_dsa_published", "f32"}),
                         [](const auto& i) { return std::string(i.param.name) + "_" + i.param.kv; });

TEST(DraftModel, WrongGuessesLeaveNoTrace) {
  const auto plan = plan_of(pocket());
  const auto draft = open_draft(plan);
  const std::uint32_t vocab = pocket().manifest.spec.vocab;
  Ids ids = some_ids(30, vocab);
  for (std::uint32_t round = 0; round < 12; ++round) {
    // The target kept `round % 8` of them and went on with another token.
    const Ids guess = proposed(*draft, 0, ids);
    ASSERT_EQ(guess.size(), ring::kMostDrafted);
    const std::uint32_t kept = round % 8;
    ids.insert(ids.end(), guess.begin(), guess.begin() + kept);
    ids.push_back(kept < 7 ? (guess[kept] + 17) % vocab : 5);
    if (round % 3 != 0) ids.push_back(11);  // a hint was lost: the wrong one is no longer the last
    const auto fresh = open_draft(plan);
    EXPECT_EQ(proposed(*draft, 0, ids), proposed(*fresh, 0, ids)) << "kept " << kept;
  }
  // And far back, at a page's end and in a page's middle.
  for (const std::uint32_t length : {33u, 32u, 16u, 7u, 1u}) {
    ids.resize(length);
    ids[length / 2] = (ids[length / 2] + 1) % vocab;
    const auto fresh = open_draft(plan);
    EXPECT_EQ(proposed(*draft, 0, ids), proposed(*fresh, 0, ids)) << length;
  }
}

/// After a step of decoding there is a row or two to compute, not the prompt once more.
TEST(DraftModel, ComputesOnlyWhatItHasNotSeen) {
  const auto draft = open_draft(plan_of(pocket()));
  Ids ids = some_ids(30, 4093);
  const Ids guess = proposed(*draft, 0, ids, 3);
  EXPECT_EQ(draft->rows(), 30u + 2u);
  // All three stood, and the target's own token follows: the third one's row is new too.
  ids = joined(joined(ids, guess), {7});
  proposed(*draft, 0, ids, 3);
  EXPECT_EQ(draft->rows(), 32u + 2u + 2u);
  // None stood.
  ids.push_back(9);
  proposed(*draft, 0, ids, 1);
  EXPECT_EQ(draft->rows(), 36u + 1u);
  // The same once more: the last row gives the token.
  proposed(*draft, 0, ids, 1);
  EXPECT_EQ(draft->rows(), 37u + 1u);
}

TEST(DraftModel, TwoPlacesInTurnsAndAThirdRequestInOne) {
  const auto plan = plan_of(pocket());
  const auto draft = open_draft(plan);
  Ids a = some_ids(40, 4093, 3), b = some_ids(21, 4093, 5);
  const auto alone_a = open_draft(plan), alone_b = open_draft(plan);
  for (std::uint32_t step = 0; step < 10; ++step) {
    for (const auto& [place, ids, alone] : {std::tuple{0u, &a, alone_a.get()}, {15u, &b, alone_b.get()}}) {
      const Ids guess = proposed(*draft, place, *ids);
      ASSERT_EQ(guess, proposed(*alone, 0, *ids)) << place;
      ids->push_back(guess[0]);
    }
  }
  // Another request in place 0: one that shares a beginning, and one that shares nothing.
  Ids c(a.begin(), a.begin() + 25);
  c.push_back(1);
  const Ids d = some_ids(9, 4093, 7);
  for (const Ids& ids : {c, d}) {
    const auto fresh = open_draft(plan);
    EXPECT_EQ(proposed(*draft, 0, ids), proposed(*fresh, 0, ids));
  }
  // The other place has not noticed.
  EXPECT_EQ(proposed(*draft, 15, b), proposed(*alone_b, 0, b));
  draft->forget(15);
  const std::uint64_t before = draft->rows();
  EXPECT_EQ(proposed(*draft, 15, b, 1), proposed(*alone_b, 0, b, 1));
  EXPECT_EQ(draft->rows() - before, b.size()) << "what was forgotten is computed anew";
}

TEST(DraftModel, CatchesUpInPieces) {
  const auto plan = plan_of(pocket());
  const auto draft = open_draft(plan);
  const Ids ids = some_ids(300, 4093);
  const Ids short_of(ids.begin(), ids.begin() + 64);
  Ids out(ring::kMostDrafted);
  for (std::uint32_t rows = 64; rows <= 256; rows += 64) {
    EXPECT_EQ(draft->propose(0, 1, ids, out), 0u);
    EXPECT_TRUE(draft->has_more(0));
    EXPECT_EQ(draft->rows(), rows);
  }
  EXPECT_EQ(draft->propose(0, 1, ids, out), ring::kMostDrafted);
  EXPECT_FALSE(draft->has_more(0));
  EXPECT_EQ(draft->rows(), 300u + 6u);
  // The whole prompt by one pass of another engine.
  LoadedModel& m = const_cast<LoadedModel&>(pocket());
  Engine engine(m, kernels::best_kernels(), 1, 320, 320, false, kernels::KvFormat::kF32,
                m.manifest.profile == "fast");
  Ids all = ids, want;
  std::vector<float> logits = engine.prompt(ids, 300);
  while (want.size() < ring::kMostDrafted) {
    want.push_back(argmax(logits));
    all.push_back(want.back());
    logits = engine.rows(all, static_cast<std::uint32_t>(all.size()) - 1, 1);
  }
  EXPECT_EQ(out, want);

  // Without room for a proposal it stops before the last id, whose row the proposal needs.
  const auto ahead = open_draft(plan);
  while (ahead->propose(3, 1, ids, {}), ahead->has_more(3)) EXPECT_LT(ahead->rows(), 299u);
  EXPECT_EQ(ahead->rows(), 299u);
  EXPECT_EQ(ahead->propose(3, 1, ids, {}), 0u);
  EXPECT_EQ(ahead->rows(), 299u);
  EXPECT_EQ(ahead->propose(3, 1, ids, out), ring::kMostDrafted);
  EXPECT_EQ(out, want);
  EXPECT_EQ(ahead->rows(), 300u + 6u);
  EXPECT_EQ(ahead->propose(2, 1, short_of, out), ring::kMostDrafted) << "64 rows are one piece";
}

TEST(DraftModel, SaysNothingBeyondItsContext) {
  const auto draft = open_draft(plan_of(pocket(), 40));
  Ids ids = some_ids(34, 4093);
  EXPECT_EQ(proposed(*draft, 0, ids).size(), 7u) << "the last one stands at the end of the context";
  while (ids.size() < 40) {
    ids.push_back(3);
    EXPECT_EQ(proposed(*draft, 0, ids).size(), 41 - ids.size());
  }
  ids.push_back(3);
  EXPECT_EQ(proposed(*draft, 0, ids).size(), 0u);
  EXPECT_FALSE(draft->has_more(0));
  ids.resize(20);
  EXPECT_EQ(proposed(*draft, 0, ids), proposed(*open_draft(plan_of(pocket(), 40)), 0, ids));
}

TEST(DraftModel, IdsOutsideOfItsVocabularyGetNoAnswer) {
  const auto draft = open_draft(plan_of(pocket()));
  const std::uint32_t vocab = pocket().manifest.spec.vocab;
  const Ids good = some_ids(20, vocab);
  const Ids before = proposed(*draft, 0, good);
  for (const std::uint32_t bad : {vocab, ~0u}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{12}, good.size() - 1}) {
      Ids ids = good;
      ids[at] = bad;
      EXPECT_EQ(proposed(*draft, 0, ids).size(), 0u);
      EXPECT_FALSE(draft->has_more(0));
    }
  }
  EXPECT_EQ(draft->propose(0, 1, {}, {}), 0u);
  EXPECT_EQ(proposed(*draft, 0, good), before);
}

TEST(DraftModel, ProposesNoTokenBeyondTheTargetsVocabulary) {
  std::ifstream in(kData + "/pocket-dictionary/reference.json");
  const auto reference = nlohmann::json::parse(in);
  const Ids prompt = reference["prompts"][0]["input_ids"];
  const auto all = proposed(*open_draft(plan_of(pocket())), 0, prompt);
  ASSERT_GT(*std::max_element(all.begin(), all.end()), 300u);
  for (const std::uint32_t id : proposed(*open_draft(plan_of(pocket()), 300), 0, prompt)) EXPECT_LT(id, 300u);
}

/// Places that nobody forgot give their pages to those that live.
TEST(DraftModel, TakesPagesFromThePlaceThatWasAskedAboutLeastRecently) {
  const auto plan = plan_of(pocket(), 64);
  const auto draft = open_draft(plan);
  ASSERT_EQ(draft->sizes().kv_pages, 6u);  // 4 of the run's pool, and one for each of two sequences
  const auto fresh = [&](const Ids& ids) { return proposed(*open_draft(plan), 0, ids); };
  const Ids a = some_ids(30, 4093, 3), b = some_ids(30, 4093, 5), c = some_ids(20, 4093, 7);
  // 3, 3 pages; then 2 for a third place.
  EXPECT_EQ(proposed(*draft, 0, a), fresh(a));
  EXPECT_EQ(proposed(*draft, 1, b), fresh(b));
  EXPECT_EQ(proposed(*draft, 0, a), fresh(a));
  EXPECT_EQ(proposed(*draft, 2, c), fresh(c));
  const std::uint64_t before = draft->rows();
  EXPECT_EQ(proposed(*draft, 0, a, 1), Ids{fresh(a).front()});
  EXPECT_EQ(draft->rows() - before, 1u) << "place 0 was asked about later than place 1";
  EXPECT_EQ(proposed(*draft, 1, b), fresh(b));
  EXPECT_GT(draft->rows() - before, 30u) << "place 1 has lost its rows";
  // One sequence may take all that there is.
  const Ids longest = some_ids(60, 4093, 9);
  EXPECT_EQ(proposed(*draft, 9, longest, 5), proposed(*open_draft(plan), 0, longest, 5));
}

class DraftFolder : public ::testing::Test {
 protected:
  DraftFolder() : plan_(plan_of(pocket(), 64)) {
    plan_.options.draft = (copy_.path() / "draft").string();
    std::filesystem::copy(pocket().path, plan_.options.draft, std::filesystem::copy_options::recursive);
  }
  std::string error() const {
    const auto draft = DraftModel::open(plan_, 4096);
    return draft.ok() ? "" : draft.error().text;
  }
  void damage(const std::string& file, std::uint64_t at) const {
    std::fstream f(plan_.options.draft + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(f.get() ^ 1);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(byte);
  }
  compute::testing::TempFolder copy_;
  plan::RunPlan plan_;
};

TEST_F(DraftFolder, WholeOne) {
  EXPECT_EQ(error(), "");
}
TEST_F(DraftFolder, OneThatIsNotThere) {
  std::filesystem::remove_all(plan_.options.draft);
  EXPECT_NE(error().find("--draft " + plan_.options.draft), std::string::npos) << error();
}
TEST_F(DraftFolder, AnotherThanWasPlanned) {
  plan_.draft_bytes += 4096;
  EXPECT_NE(error().find("changed on disk"), std::string::npos) << error();
}
TEST_F(DraftFolder, DamagedDensePart) {
  const auto& [name, t] = *pocket().manifest.dense.begin();
  damage(pocket().manifest.dense_file, pocket().manifest.dense_file_offset + t.offset);
  EXPECT_NE(error().find("tensor " + name + " does not match its checksum"), std::string::npos) << error();
}
TEST_F(DraftFolder, DamagedExpert) {
  const model::LayerExperts& layer = pocket().manifest.experts.back();
  damage(layer.file, layer.extents[3].offset + 5);
  EXPECT_NE(error().find(layer.file + ": expert 3 does not match its checksum"), std::string::npos)
      << error();
}

}  // namespace
}  // namespace wisp::speculator
