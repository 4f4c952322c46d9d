#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "rig.hpp"

/// Drafts between a scripted speculator and a scripted compute: whatever is said, the answer is the same.
namespace wisp::router {
namespace {

using testing::Rig;

std::vector<std::uint32_t> some_ids(std::mt19937_64& random, std::size_t n) {
  std::vector<std::uint32_t> ids(n);
  for (auto& id : ids) id = static_cast<std::uint32_t>(random() % Rig::kVocab);
  return ids;
}

/// Polls until a step is there, and runs it; false when there is nothing left to do.
bool turn(Rig& rig, const std::function<void(const Rig::Question&)>& speculator) {
  for (int i = 0; i < 64; ++i) {
    rig.router().poll();
    rig.hear();
    for (const Rig::Question& q : rig.questions()) speculator(q);
    if (rig.compute()) return true;
  }
  return false;
}

TEST(Drafts, RightOnesMakeManyTokensOfAStep) {
  std::mt19937_64 random(1);
  Rig rig({1, 64, true, "3"});
  const auto prompt = some_ids(random, 20);
  const auto request = rig.submit(prompt, 100);
  std::uint32_t steps = 0;
  while (turn(rig, [&](const Rig::Question& q) { rig.answer(q, DraftSource::kLongMatch, 15, 15); })) ++steps;
  EXPECT_EQ(rig.answer(request), Rig::expected(prompt, 100));
  EXPECT_EQ(rig.committed(request).finish, shm::Finish::kLength);
  EXPECT_LE(steps, 2u + 100 / 4 + 1) << "three drafts a step, all of them right";
  EXPECT_EQ(rig.counter(stats::Counter::kDrafted1), rig.counter(stats::Counter::kAccepted1));
  EXPECT_EQ(rig.counter(stats::Counter::kTokensCommitted), 100u);
}

TEST(Drafts, WrongOnesChangeNothing) {
  std::mt19937_64 random(2);
  for (const std::uint32_t right : {0u, 1u, 2u, 6u}) {
    Rig rig({2, 16, true, "7"});
    const auto a = some_ids(random, 9), b = some_ids(random, 40);
    const auto first = rig.submit(a, 60), second = rig.submit(b, 33);
    while (turn(rig, [&](const Rig::Question& q) { rig.answer(q, DraftSource::kShortMatch, 15, right); })) {
    }
    EXPECT_EQ(rig.answer(first), Rig::expected(a, 60));
    EXPECT_EQ(rig.answer(second), Rig::expected(b, 33));
  }
}

TEST(Drafts, NonsenseIsCountedAndDropped) {
  std::mt19937_64 random(3);
  Rig rig({2, 16, true, "5"});
  const auto a = some_ids(random, 9);
  const auto request = rig.submit(a, 80);
  std::vector<std::uint32_t> ids(16);
  while (turn(rig, [&](const Rig::Question& q) {
    for (int n = 0; n < 8; ++n) {
      ring::Message m;
      m.kind = random() % 4 == 0 ? static_cast<ring::Kind>(random() % 32) : ring::Kind::kDraft;
      m.flags = static_cast<std::uint8_t>(random());
      m.request = random() % 2 == 0 ? q.request : random();
      m.slot = random() % 2 == 0 ? q.record : static_cast<std::uint32_t>(random());
      m.pos = random() % 2 == 0 ? q.pos + static_cast<std::uint32_t>(random() % 5) - 2
                                : static_cast<std::uint32_t>(random());
      for (std::uint32_t& id : ids)
        id = static_cast<std::uint32_t>(random() % 2 == 0 ? random() : random() % Rig::kVocab);
      m.payload = std::as_bytes(std::span(ids)).first(random() % 65);
      rig.say(m);
    }
    rig.answer(q, DraftSource::kModel, 5, 1);
  })) {
  }
  EXPECT_EQ(rig.answer(request), Rig::expected(a, 80));
  EXPECT_GT(rig.counter(stats::Counter::kDraftsWrong), 100u);
}

TEST(Drafts, ASpeculatorThatIsGoneIsNotWaitedFor) {
  std::mt19937_64 random(4);
  Rig rig({1, 16, true, "4"});
  const auto a = some_ids(random, 5);
  const auto request = rig.submit(a, 30);
  rig.speculator_state(shm::StageState::kBackingOff);
  std::uint32_t steps = 0;
  for (rig.router().poll(); rig.compute(); rig.router().poll()) ++steps;
  EXPECT_EQ(steps, 30u);
  EXPECT_EQ(rig.answer(request), Rig::expected(a, 30));
}

TEST(Drafts, WhatStoodOfAMessageIsAtHandForTheNextStep) {
  std::mt19937_64 random(5);
  Rig rig({1, 16, true, "3"});
  const auto a = some_ids(random, 5);
  const auto request = rig.submit(a, 40);
  bool answered = false;
  const auto once = [&](const Rig::Question& q) {
    if (!answered) rig.answer(q, DraftSource::kLongMatch, 15, 15);
    answered = true;
  };
  ASSERT_TRUE(turn(rig, once));  // the prompt
  std::uint32_t drafted = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(turn(rig, once));
    drafted += rig.parts()[0].drafts;
  }
  rig.router().poll();
  EXPECT_EQ(drafted, 3u + 3u + 3u + 3u) << "fifteen tokens make three and one, three times, and three";
  EXPECT_EQ(rig.committed(request).length, 1u + 16u);
}

TEST(Drafts, ARouterThatDiesAnywhereLosesNoToken) {
  std::mt19937_64 random(6);
  Rig rig({2, 16, true, "6"});
  const auto a = some_ids(random, 30), b = some_ids(random, 3);
  const auto first = rig.submit(a, 90), second = rig.submit(b, 70);
  const auto speculator = [&](const Rig::Question& q) {
    rig.answer(q, DraftSource::kModel, 15, static_cast<std::uint32_t>(random() % 8));
  };
  for (int n = 0; n < 400; ++n) {
    if (random() % 3 == 0) rig.start();
    rig.router().poll();
    rig.hear();
    for (const Rig::Question& q : rig.questions()) speculator(q);
    if (random() % 4 == 0) rig.start();
    rig.compute();
  }
  while (turn(rig, speculator)) {
  }
  EXPECT_EQ(rig.answer(first), Rig::expected(a, 90));
  EXPECT_EQ(rig.answer(second), Rig::expected(b, 70));
}

TEST(Drafts, NeverMoreThanTheAnswerHasRoomFor) {
  std::mt19937_64 random(7);
  for (const std::uint32_t most : {1u, 2u, 3u, 9u}) {
    Rig rig({1, 4, true, "7"});
    const auto a = some_ids(random, 6);
    const auto request = rig.submit(a, most);
    while (turn(rig, [&](const Rig::Question& q) { rig.answer(q, DraftSource::kModel, 15, 15); }))
      for (const Rig::Part& p : rig.parts()) {
        EXPECT_LE(p.start + p.count, a.size() + most);
        EXPECT_LE(p.count, 4u + 1u) << "rows of a step";
      }
    EXPECT_EQ(rig.answer(request), Rig::expected(a, most));
  }
}

TEST(Drafts, ALogDecidesTheSameAgain) {
  std::mt19937_64 random(8);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("wisp-drafts-" + std::to_string(::getpid()))).string();
  Rig rig({2, 16, true, "auto", true, path});
  const auto a = some_ids(random, 30), b = some_ids(random, 12);
  rig.submit(a, 400);
  rig.submit(b, 150);
  while (turn(rig, [&](const Rig::Question& q) {
    rig.answer(q, DraftSource::kLongMatch, 15, static_cast<std::uint32_t>(random() % 16));
  })) {
  }
  auto replay = replay_drafts(path);
  ASSERT_TRUE(replay.ok()) << replay.error().text;
  EXPECT_GT(replay->decisions, 300u);
  EXPECT_EQ(replay->different, 0u);
  EXPECT_GT(replay->tokens, 500u) << "of 550, those of steps without rows of prompts";
  // Another figure, and the decisions are others.
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), {}), changed;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at) + 1;
    if (text.compare(at, 5, "judge") != 0) changed += text.substr(at, end - at);
    at = end;
  }
  std::ofstream(path) << changed;
  EXPECT_GT(replay_drafts(path)->different, 0u);
  std::ofstream(path) << "life 4 0\nstep 0 0 0 0 0\n";
  EXPECT_FALSE(replay_drafts(path).ok());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace wisp::router
