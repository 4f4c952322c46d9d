#include "services/compute/logprobs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "shm/journal.hpp"

namespace wisp::compute {
namespace {

using Words = std::vector<std::uint32_t>;

Words told(const std::vector<float>& logits, std::uint32_t token, std::uint32_t asked) {
  Logprobs l;
  Words out;
  l.tell(logits, token, asked, out);
  EXPECT_EQ(out.size(), shm::logprob_words(asked));
  return out;
}

float number(std::uint32_t word) {
  return std::bit_cast<float>(word);
}

std::vector<float> random_logits(std::uint32_t vocab, float width, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, width);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(random);
  return logits;
}

/// Ids by (logit descending, id ascending).
Words ranked(const std::vector<float>& logits) {
  Words ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0u);
  std::sort(ids.begin(), ids.end(), [&](std::uint32_t a, std::uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  return ids;
}

TEST(Logprobs, AreThoseOfASoftmaxInDoubles) {
  for (const std::uint32_t vocab : {21u, 4096u, 151936u}) {
    for (const float width : {0.01f, 1.0f, 8.0f}) {
      const std::vector<float> logits = random_logits(vocab, width, vocab);
      const double top = *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
      const auto want = [&](std::uint32_t t) { return static_cast<double>(logits[t]) - top - std::log(sum); };
      const Words best = ranked(logits), out = told(logits, vocab / 2, 21);
      EXPECT_NEAR(number(out[0]), want(vocab / 2), 4e-6);
      for (std::uint32_t n = 0; n < 20; ++n) {
        EXPECT_EQ(out[1 + 2 * n], best[n]) << "place " << n << " of " << vocab;
        EXPECT_NEAR(number(out[2 + 2 * n]), want(best[n]), 4e-6);
      }
    }
  }
}

TEST(Logprobs, TellAsManyAsAskedFor) {
  const std::vector<float> logits{1.0f, 3.0f, 2.0f};
  EXPECT_EQ(told(logits, 2, 1).size(), 1u);
  const Words two = told(logits, 0, 3);
  EXPECT_EQ((Words{two[1], two[3]}), (Words{1, 2})) << "the drawn one is not among them";
  EXPECT_EQ(told(logits, 0, 1)[0], two[0]);
}

TEST(Logprobs, OfEqualOnesTheLowestIdIsFirst) {
  std::vector<float> logits(500, -1.0f);
  for (const std::uint32_t t : {400u, 7u, 77u}) logits[t] = 2.0f;
  const Words out = told(logits, 400, 6);
  EXPECT_EQ((Words{out[1], out[3], out[5], out[7], out[9]}), (Words{7, 77, 400, 0, 1}));
  EXPECT_EQ(out[2], out[0]) << "equal logits, equal numbers";
}

TEST(Logprobs, AreFiniteWhateverTheLogits) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const Words ruled_out = told({0.0f, -kInfinite, -30000.0f}, 1, 4);
  EXPECT_EQ(number(ruled_out[0]), shm::kLeastLogprob);
  EXPECT_EQ(number(ruled_out[2]), 0.0f);
  EXPECT_EQ((Words{ruled_out[1], ruled_out[3], ruled_out[5]}), (Words{0, 2, 1}));
  EXPECT_EQ(number(ruled_out[4]), shm::kLeastLogprob);
  const Words above_all = told({kInfinite, 1.0f, kInfinite}, 0, 4);
  EXPECT_FLOAT_EQ(number(above_all[0]), -std::log(2.0f));
  EXPECT_EQ((Words{above_all[1], above_all[3], above_all[5]}), (Words{0, 2, 1}));
  EXPECT_EQ(number(above_all[6]), shm::kLeastLogprob);
  for (const std::uint32_t word : told({-kInfinite, -kInfinite}, 1, 1))
    EXPECT_TRUE(std::isfinite(number(word)));
}

TEST(Logprobs, SayWhereTheVocabularyEnds) {
  const Words out = told({1.0f, 2.0f}, 0, 5);
  EXPECT_EQ((Words{out[1], out[3], out[5], out[7]}), (Words{1, 0, shm::kNoToken, shm::kNoToken}));
}

TEST(Logprobs, AppendAndTakeTheSameBitsAgain) {
  Logprobs l;
  Words out;
  const std::vector<float> logits = random_logits(3000, 3.0f, 1);
  l.tell(logits, 5, 8, out);
  l.tell(random_logits(3000, 9.0f, 2), 6, 8, out);
  l.tell(logits, 5, 8, out);
  const std::size_t each = shm::logprob_words(8);
  ASSERT_EQ(out.size(), 3 * each);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(each),
                         out.end() - static_cast<std::ptrdiff_t>(each)));
}

}  // namespace
}  // namespace wisp::compute
