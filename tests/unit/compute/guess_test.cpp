#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "model_fixture.hpp"

/// What a step expects of its next layer, before that layer's router has spoken.
namespace wisp::compute {
namespace {

using testing::LoadedModel;

constexpr std::uint32_t kCtx = 64;

/// Hands experts over, waits once before or after all of them, and keeps guesses and what was asked for.
class WaitingExperts final : public ExpertSource {
 public:
  WaitingExperts(const std::string& folder, const model::Manifest& m, bool wants)
      : wants_(wants), files_(eval::FileExperts::open(folder, m).value()) {}

  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use, Fail fail,
             Cancelled cancelled) override {
    for (const ring::TouchMember& m : set) asked[layer].push_back(m.expert);
    if (wait_first && cancelled()) return false;
    if (!files_.visit(layer, set, decode, use, fail, [] { return false; })) return false;
    return wait_first || !cancelled();
  }
  bool wants_guesses() const override { return wants_; }
  void guess(std::uint32_t layer, std::span<const std::uint32_t> experts) override {
    guessed[layer].assign(experts.begin(), experts.end());
  }

  std::map<std::uint32_t, std::vector<std::uint32_t>> asked, guessed;  ///< by layer
  bool wait_first = false;

 private:
  bool wants_;
  eval::FileExperts files_;
};

class Guess : public ::testing::Test {
 protected:
  /// One step of `rows` tokens of as many sequences, position 0.
  void step(WaitingExperts& experts, std::uint32_t rows) {
    ThreadPool pool(2);
    std::vector<std::byte> kv(rows * model_->page_bytes());
    Forward forward(model_->manifest.spec, model_->weights,
                    {kv.data(), model_->page_bytes(), kernels::KvFormat::kF32}, kernels::best_kernels(), pool,
                    rows, kCtx);
    std::vector<std::uint32_t> ids, pages;
    for (std::uint32_t r = 0; r < rows; ++r) {
      ids.push_back(11 + 17 * r);
      pages.push_back(r);
    }
    std::vector<Sequence> s;
    for (std::uint32_t r = 0; r < rows; ++r)
      s.push_back({std::span(ids).subspan(r, 1), std::span(pages).subspan(r, 1), 0, Logits::kLastRow, {}});
    ASSERT_TRUE(forward.run(s, experts, [] { return false; }));
  }
  /// With what attention adds gone, the next layer sees what the experts leave, and the guess is the truth.
  void silence_attention() {
    for (std::uint32_t l = 0; l < layers(); ++l) {
      const auto& o = model_->manifest.dense.at("layers." + std::to_string(l) + ".attn.o");
      std::memset(model_->dense.data() + o.offset, 0, o.bytes);
    }
  }
  std::uint32_t layers() const { return static_cast<std::uint32_t>(model_->manifest.spec.layers.size()); }

  std::unique_ptr<LoadedModel> model_ =
      LoadedModel::convert(std::string(WISP_TEST_DATA) + "/pocket-dictionary");
};

TEST_F(Guess, IsTheNextChoiceWhereNothingComesBetween) {
  silence_attention();
  for (const std::uint32_t rows : {1u, 3u, 8u}) {
    WaitingExperts experts(model_->path, model_->manifest, true);
    step(experts, rows);
    ASSERT_EQ(experts.guessed.size(), layers() - 1);
    for (const auto& [layer, guess] : experts.guessed) {
      EXPECT_TRUE(std::ranges::is_permutation(guess, experts.asked[layer]))
          << layer << ", " << rows << " rows";
      if (rows == 1) {
        EXPECT_EQ(guess, experts.asked[layer]) << "the likeliest first, layer " << layer;
      }
    }
  }
}

TEST_F(Guess, KnowsMoreWhenExpertsHaveCome) {
  silence_attention();
  WaitingExperts before(model_->path, model_->manifest, true);
  before.wait_first = true;
  step(before, 8);
  std::size_t right = 0, all = 0;
  for (auto& [layer, guess] : before.guessed)
    for (const std::uint32_t e : guess) {
      ++all;
      right += std::ranges::count(before.asked[layer], e) != 0 ? 1u : 0u;
    }
  EXPECT_LT(right, all) << "the experts of a layer change nothing in the next one's choice?";
  EXPECT_GT(right, all / 2);
}

TEST_F(Guess, ChangesNoBit) {
  WaitingExperts with(model_->path, model_->manifest, true), without(model_->path, model_->manifest, false);
  step(with, 3);
  step(without, 3);
  EXPECT_TRUE(without.guessed.empty());
  EXPECT_EQ(with.asked, without.asked);
}

TEST_F(Guess, IsNotMadeForManyRows) {
  WaitingExperts experts(model_->path, model_->manifest, true);
  step(experts, 9);
  EXPECT_TRUE(experts.guessed.empty());
}

}  // namespace
}  // namespace wisp::compute
