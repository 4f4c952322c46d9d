#include "services/compute/penalties.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "oracle_cases.hpp"

namespace wisp::compute {
namespace {

using Ids = std::vector<std::uint32_t>;

void count(Penalties& p, const Ids& prompt, const Ids& answer) {
  const auto text = p.text(prompt.size() + answer.size());
  std::ranges::copy(answer, std::ranges::copy(prompt, text.begin()).out);
  p.count(static_cast<std::uint32_t>(prompt.size()));
}

/// tests/oracle/penalties.py. One object for all: nothing of a sequence is left for the next.
TEST(Penalties, AreThoseOfTransformersAndOfOpenAi) {
  std::ifstream in(testing::kData + "/penalties.json");
  const auto cases = nlohmann::json::parse(in);
  ASSERT_EQ(cases.size(), 7u);
  Penalties penalties;
  penalties.reserve(static_cast<std::uint32_t>(cases[0]["logits"].size()), 64);
  for (const auto& c : cases) {
    const Ids prompt = c["prompt"], answer = c["answer"];
    shm::RequestParams p;
    p.repetition_penalty = c["repetition"];
    p.frequency_penalty = c["frequency"];
    p.presence_penalty = c["presence"];
    EXPECT_EQ(p.penalises(), &c != &cases[0]) << "the first has none";
    const std::vector<float> logits = c["logits"];
    const std::vector<double> want = c["want"];
    const auto compare = [&] {
      const auto got = penalties.apply(logits, p);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
    };
    count(penalties, prompt, answer);
    compare();
    // Token by token, as drafts stand.
    count(penalties, prompt, {});
    for (const std::uint32_t id : answer) penalties.add(id);
    compare();
  }
}

TEST(Penalties, IdsWithoutALogitCountNothing) {
  Penalties penalties;
  penalties.reserve(3, 8);
  shm::RequestParams p;
  p.presence_penalty = 1;
  count(penalties, {7}, {3, UINT32_MAX, 1});
  EXPECT_TRUE(
      std::ranges::equal(penalties.apply(std::vector{1.0f, 2.0f, 3.0f}, p), std::vector{1.0f, 1.0f, 3.0f}));
}

}  // namespace
}  // namespace wisp::compute
