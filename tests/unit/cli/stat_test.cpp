#include <gtest/gtest.h>

#include <memory>

#include "ring/descriptor.hpp"
#include "services/cli/draft_figures.hpp"
#include "services/cli/stat_view.hpp"

namespace wisp::cli {
namespace {

TEST(Stat, WaitsInWords) {
  EXPECT_EQ(wait_text(shm::WaitFor::kExpert, ring::expert_key(3, 17)), "expert 17 of layer 3");
  EXPECT_EQ(wait_text(shm::WaitFor::kRingSpace, 5), "space in the ring compute -> loader");
  EXPECT_EQ(wait_text(shm::WaitFor::kStepResult, 12), "the result of step 12");
  EXPECT_EQ(wait_text(shm::WaitFor::kNothing, 0), "");
  EXPECT_NE(wait_text(static_cast<shm::WaitFor>(99), 0).find("99"), std::string::npos);
}

TEST(Stat, QuantilesOfAHistogram) {
  const auto h = std::make_unique<stats::Histogram>();
  EXPECT_EQ(quantile_ns(*h, 0.5), 0.0);
  for (int i = 0; i < 98; ++i) h->add(1000);
  h->add(1 << 20);
  h->add(1 << 20);
  EXPECT_EQ(quantile_ns(*h, 0.5), 1.5 * 512);
  EXPECT_EQ(quantile_ns(*h, 0.99), 1.5 * (1 << 20));
}

TEST(Stat, TextOfAHeldAndADeadStage) {
  using Json = nlohmann::ordered_json;
  const auto stage = [](const char* name, bool alive, unsigned traced, const char* waits) {
    return Json{{"stage", name},
                {"alive", alive},
                {"pid", 42},
                {"epoch", 2},
                {"state", "ready"},
                {"stopped", traced != 0},
                {"traced_by", traced},
                {"restarts", 1},
                {"waits_for", waits},
                {"waits_s", 12.0},
                {"counters", {{"loops", 3}}}};
  };
  DraftFigures drafts;
  drafts.steps = 4;
  drafts.tokens = 10;
  drafts.ns = 2'000'000'000;
  drafts.plain_tokens = 6;
  drafts.plain_ns = 3'000'000'000;
  drafts.drafted = {4, 4, 1};
  drafts.accepted = {4, 2, 0};
  Json j{{"run_dir", "/r"},
         {"model", "pocket"},
         {"topology", "full"},
         {"port", 0},
         {"engine_clock_paused", true},
         {"given_up", ""},
         {"stages",
          Json::array({stage("compute", true, 4039, "expert 1 of layer 2"), stage("loader", false, 0, "")})},
         {"slots",
          {{"total", 8},
           {"ready", 4},
           {"read_ahead", 1},
           {"filling", 1},
           {"evicting", 0},
           {"draining", 2},
           {"free", 0},
           {"dense_ready", true}}},
         {"experts", 256},
         {"memory",
          {{"now_bytes", 1048576},
           {"peak_bytes", 2097152},
           {"budget_bytes", 4194304},
           {"slab_bytes", 65536},
           {"slab_in_memory", 32768},
           {"huge_page_bytes", 0},
           {"locked", true}}},
         {"kv", {{"tokens", 640}, {"format", "bf16"}, {"bytes", 3145728}}},
         {"speculation", to_json(drafts)},
         {"requests", Json::array()},
         {"hops", Json::array()}};
  const std::string text = stat_text(j);
  for (const char* part : {"traced by 4039", "expert 1 of layer 2 (12.0 s)", "clock stands still",
                           "4 ready, 1 read ahead, 1 filling", "2 draining", "2 MiB at most",
                           "640 tokens in bf16, 3 MiB", "loops 3",
                           "drafts   9, 6 stood; by place 100 % 50 % 0 %; 2.50 tokens a pass; 5.0 tokens per "
                           "second with them, 2.0 in plain steps"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  j["speculation"] = to_json(DraftFigures{});
  EXPECT_EQ(stat_text(j).find("drafts"), std::string::npos);
}

}  // namespace
}  // namespace wisp::cli
