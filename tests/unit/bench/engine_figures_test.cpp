#include "services/bench/engine_figures.hpp"

#include <gtest/gtest.h>

namespace wisp::bench {
namespace {

/// 10 tokens in 3 s after the first, 40 of 100 experts missed: 4,000 bytes of 100 each at 2,000 bytes/s.
EngineTurn turn() {
  EngineTurn t;
  t.cold = true;
  t.plain_rate = 2000;
  t.started_s = 5;
  t.first_s = 2;
  t.decode_s = 3;
  t.prompt = 4;
  t.tokens = 10;
  t.stride = 100;
  t.accesses = 100;
  t.hits = 60;
  t.prompt_accesses = 30;
  t.prompt_hits = 10;
  t.expert_bytes = 6000;
  t.dense_bytes = 3000;
  t.dense_left = 1000;
  t.unique = 25;
  t.expert_wait_s = 1.5;
  return t;
}

TEST(EngineFigures, AreWhatTheCountersSay) {
  EngineTurn t = turn();
  EXPECT_EQ(t.missed_bytes(), 4000u);
  EXPECT_EQ(t.prompt_bytes(), 2000u);
  EXPECT_DOUBLE_EQ(t.decode_tok_s(), 3.0);
  EXPECT_DOUBLE_EQ(*t.hit_rate(), 0.6);
  EXPECT_DOUBLE_EQ(*t.drive_share(), 4000.0 / 3 / 2000);
  // I/O is 2 s, compute 1.5 s.
  EXPECT_DOUBLE_EQ(t.overlap(), 1.5);
  t.expert_wait_s = 0.5;
  EXPECT_DOUBLE_EQ(t.overlap(), 3 / 2.5);
  EXPECT_DOUBLE_EQ(*t.read_amplification(), 6000.0 / 2500);
  EXPECT_DOUBLE_EQ(*t.first_from_request(), 2 / ((1000.0 + 2500) / 2000));
  EXPECT_DOUBLE_EQ(*t.first_from_start(), 5 / ((3000.0 + 2500) / 2000));
  t.unique = 0;
  EXPECT_DOUBLE_EQ(*t.first_from_request(), 2 / ((1000.0 + 2000) / 2000));
}

TEST(EngineFigures, WhatWasNotMeasuredIsNotSaid) {
  EngineTurn t = turn();
  t.cold = false;
  t.unique = 0;
  t.hits = t.accesses;
  EXPECT_FALSE(t.first_from_start());
  EXPECT_FALSE(t.read_amplification());
  EXPECT_FALSE(t.drive_share());
  EXPECT_DOUBLE_EQ(*t.hit_rate(), 1.0);
  EXPECT_DOUBLE_EQ(t.overlap(), 2.0);
  t.prompt_hits = t.prompt_accesses;
  t.dense_left = 0;
  EXPECT_FALSE(t.first_from_request());
  t.accesses = t.hits = 0;
  EXPECT_FALSE(t.hit_rate());
}

TEST(EngineFigures, TurnsThatContradictEachOtherEndTheRun) {
  const auto refused = [](const auto& change, const std::string& word) {
    std::vector<EngineTurn> turns{turn(), turn(), turn()};
    change(turns[2]);
    const Status s = check_counters(turns);
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.error().text.find("turn 3: " + word), std::string::npos) << s.error().text;
  };
  EXPECT_TRUE(check_counters({}).ok());
  EXPECT_TRUE(check_counters({turn(), turn()}).ok());
  refused([](EngineTurn& t) { ++t.tokens; }, "tokens written 11, and should be 10");
  refused([](EngineTurn& t) { ++t.accesses, t.expert_bytes += 100; }, "experts that decode asked for 101");
  refused([](EngineTurn& t) { t.expert_bytes += 100; }, "bytes of experts read 6100, and should be 6000");
  refused([](EngineTurn& t) { --t.hits, t.expert_bytes += 100; }, "experts that decode found 59");
  refused([](EngineTurn& t) { ++t.prompt_accesses, ++t.prompt_hits; },
          "experts that the prompt asked for 31");
  refused([](EngineTurn& t) { ++t.prompt_hits, t.expert_bytes -= 100; }, "experts that the prompt found 11");
  refused([](EngineTurn& t) { ++t.unique; }, "different experts of the prompt 26");
  // An engine that goes on finds more than one that begins.
  std::vector<EngineTurn> kept{turn(), turn()};
  kept[1].cold = false;
  kept[1].hits += 10;
  kept[1].prompt_hits += 5;
  kept[1].expert_bytes -= 1500;
  EXPECT_TRUE(check_counters(kept).ok());
}

}  // namespace
}  // namespace wisp::bench
