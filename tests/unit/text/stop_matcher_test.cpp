#include "services/gateway/text/stop_matcher.hpp"

#include <algorithm>
#include <random>

#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {
namespace {

StopMatcher make(std::vector<std::string> stops) {
  Result<StopMatcher> matcher = StopMatcher::create(std::move(stops));
  EXPECT_TRUE(matcher.ok());
  return std::move(matcher).value();
}

struct Outcome {
  std::vector<std::string> deltas;
  std::string text;
  std::optional<std::size_t> stop;
};

Outcome run(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher = make(std::move(stops));
  Outcome out;
  for (const std::string& piece : pieces) {
    StopMatcher::Delta delta = matcher.push(piece);
    out.text += delta.text;
    out.deltas.push_back(std::move(delta.text));
    if (delta.stop) out.stop = delta.stop;
  }
  out.text += matcher.flush();
  EXPECT_EQ(matcher.text_end(), out.text.size());
  EXPECT_EQ(matcher.stopped(), out.stop.has_value());
  return out;
}

using Deltas = std::vector<std::string>;

TEST(StopMatcher, SendsNothingOfAStopThatSpansTokens) {
  const std::string stop = "<END>";
  EXPECT_EQ(run({stop}, {"one <E", "ND> two"}).deltas, (Deltas{"one ", ""}));
  EXPECT_EQ(run({stop}, {"one ", "<", "EN", "D>"}).deltas, (Deltas{"one ", "", "", ""}));
  EXPECT_EQ(run({stop}, {"<END>"}).text, "");
  EXPECT_EQ(run({stop}, {"a<E", "N", "O", "<EN", "D", "> b", "c"}).deltas,
            (Deltas{"a", "", "<ENO", "", "", "", ""}));
  EXPECT_EQ(run({stop}, {"a", "<EN"}).text, "a<EN");
}

TEST(StopMatcher, FindsOverlappingAndSeveralStops) {
  EXPECT_EQ(run({"aab"}, {"aa", "aab"}).text, "aa");
  EXPECT_EQ(run({"abcabd"}, {"abcabcabd!"}).text, "abc");
  const Outcome first = run({"world", "lo w"}, {"hello", " world"});
  EXPECT_EQ(first.text, "hel");
  EXPECT_EQ(first.stop, 1U);
  const Outcome longest = run({"c", "bc", "x"}, {"a", "b", "c"});
  EXPECT_EQ(longest.text, "a");
  EXPECT_EQ(longest.stop, 1U);
  EXPECT_EQ(run({"</think> never comes"}, {"x</think>", " now"}).deltas, (Deltas{"x", "</think> now"}));
}

TEST(StopMatcher, WithoutStopsPassesTextThrough) {
  EXPECT_EQ(run({}, {"a", "", "b"}).deltas, (Deltas{"a", "", "b"}));
}

TEST(StopMatcher, DependsOnTheTextAloneHoweverItIsCut) {
  std::minstd_rand random(11);
  for (int round = 0; round < 2000; ++round) {
    const auto word = [&random](unsigned longest) {
      std::string out;
      for (auto n = 1 + random() % longest; n > 0; --n) out.push_back("abc"[random() % 3]);
      return out;
    };
    std::vector<std::string> stops;
    for (auto n = random() % 4; n > 0; --n) stops.push_back(word(5));
    const std::string text = word(30);
    // The plain definition: the first end of any stop, then the longest one that ends there.
    std::string expected = text;
    for (std::size_t end = 1; end <= text.size() && expected == text; ++end) {
      for (const std::string& stop : stops) {
        if (std::string_view(text).substr(0, end).ends_with(stop)) {
          expected = text.substr(0, std::min(expected.size(), end - stop.size()));
        }
      }
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = random() % 4;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const Outcome once = run(stops, pieces);
    EXPECT_EQ(once.text, expected) << text;
    EXPECT_EQ(run(stops, pieces).deltas, once.deltas);
  }
}

TEST(StopMatcher, NeverCutsACharacter) {
  const Outcome out = run({"\xC3\xA9\xC3\xA9"}, {"a\xC3\xA9", "\xC3\xA8"});
  EXPECT_EQ(out.deltas, (Deltas{"a", "\xC3\xA9\xC3\xA8"}));
}

TEST(StopMatcher, RefusesStopsByTheirIndex) {
  EXPECT_EQ(StopMatcher::create({"a", ""}).error().text, "stop[1]: is empty; leave it out");
  EXPECT_FALSE(StopMatcher::create({std::string(5000, 'a')}).ok());
  EXPECT_FALSE(StopMatcher::create({"\xFF"}).ok());
  EXPECT_FALSE(StopMatcher::create(std::vector<std::string>(65, "a")).ok());
}

}  // namespace
}  // namespace wisp::text
