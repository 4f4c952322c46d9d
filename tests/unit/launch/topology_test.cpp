#include "launch/topology.hpp"

#include <gtest/gtest.h>

namespace wisp::launch {
namespace {

TEST(Topology, ShippedOnesAreComplete) {
  auto full = load_topology("full", TOPOLOGIES);
  ASSERT_TRUE(full.ok()) << full.error().text;
  EXPECT_EQ(full->processes.size(), 5u);
  auto solo = load_topology("solo", TOPOLOGIES);
  ASSERT_TRUE(solo.ok()) << solo.error().text;
  ASSERT_EQ(solo->processes.size(), 1u);
  EXPECT_EQ(solo->processes[0].program, "wisp-solo");
  EXPECT_EQ(solo->processes[0].stages.size(), 5u);
}

TEST(Topology, UnknownNameListsWhatThereIs) {
  auto t = load_topology("nonesuch", TOPOLOGIES);
  ASSERT_FALSE(t.ok());
  EXPECT_NE(t.error().text.find("full, solo"), std::string::npos) << t.error().text;
}

TEST(Topology, RestartTableIsRead) {
  auto t = parse_topology(R"(
    [[process]]
    program = "a"
    stages = ["gateway", "router", "loader", "compute"]
    [process.restart]
    deaths = 9
    backoff_ms = 1
    backoff_max_ms = 7
  )",
                          "t");
  ASSERT_TRUE(t.ok()) << t.error().text;
  EXPECT_EQ(t->processes[0].restart.deaths, 9u);
  EXPECT_EQ(t->processes[0].restart.first_ms, 1u);
  EXPECT_EQ(t->processes[0].restart.max_ms, 7u);
}

TEST(Topology, BadOnesAreRefusedWithAReason) {
  const auto why = [](const char* text) {
    auto t = parse_topology(text, "t");
    return t.ok() ? std::string("accepted") : t.error().text;
  };
  EXPECT_NE(why("[[process").find("topology t"), std::string::npos);
  EXPECT_NE(why("a = 1").find("no [[process]]"), std::string::npos);
  EXPECT_NE(why("process = [1]").find("must be tables"), std::string::npos);
  EXPECT_NE(why("[[process]]\nprogram = \"../x\"\nstages = [\"gateway\"]").find("plain name"),
            std::string::npos);
  EXPECT_NE(why("[[process]]\nprogram = \"x\"\nstages = [\"nobody\"]").find("no stage 'nobody'"),
            std::string::npos);
  EXPECT_NE(why("[[process]]\nprogram = \"x\"\nstages = [\"gateway\"]").find("hosted 0 times"),
            std::string::npos);
  EXPECT_NE(why("[[process]]\nprogram = \"x\"\nstages = [\"gateway\", \"gateway\"]").find("hosted 2 times"),
            std::string::npos);
}

}  // namespace
}  // namespace wisp::launch
