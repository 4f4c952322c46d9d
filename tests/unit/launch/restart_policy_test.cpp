#include "launch/restart_policy.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

namespace wisp::launch {
namespace {

TEST(RestartPolicy, FirstAtOnceThenDoublingThenGivesUp) {
  RestartPolicy policy;
  const std::vector<std::uint64_t> delays{0, 100, 200, 400};
  for (std::uint64_t delay : delays) {
    const RestartDecision d = policy.on_death(false);
    EXPECT_FALSE(d.give_up);
    EXPECT_EQ(d.delay_ms, delay);
  }
  EXPECT_TRUE(policy.on_death(false).give_up);
}

TEST(RestartPolicy, DelayStopsGrowingAtItsMaximum) {
  RestartPolicy policy(RestartLimits{.deaths = 100, .first_ms = 100, .max_ms = 5000});
  std::uint64_t last = 0;
  for (int i = 0; i < 60; ++i) {
    const RestartDecision d = policy.on_death(false);
    EXPECT_GE(d.delay_ms, last);
    EXPECT_LE(d.delay_ms, 5000u);
    last = d.delay_ms;
  }
  EXPECT_EQ(last, 5000u);
}

TEST(RestartPolicy, ProgressResetsCountAndDelay) {
  RestartPolicy policy;
  for (int i = 0; i < 4; ++i) (void)policy.on_death(false);
  for (int i = 0; i < 100; ++i) {
    const RestartDecision d = policy.on_death(true);
    EXPECT_FALSE(d.give_up);
    EXPECT_EQ(d.delay_ms, 0u);
  }
  EXPECT_EQ(policy.on_death(false).delay_ms, 100u);
}

TEST(RestartPolicy, ForgiveBeginsAnew) {
  RestartPolicy policy;
  for (int i = 0; i < 5; ++i) (void)policy.on_death(false);
  policy.forgive();
  EXPECT_EQ(policy.on_death(false).delay_ms, 0u);
}

TEST(DeathCause, ByWaitStatus) {
  const auto exited = [](int status) { return status << 8; };
  EXPECT_EQ(cause_of(SIGKILL), DeathCause::kClean);
  EXPECT_EQ(cause_of(SIGTERM), DeathCause::kClean);
  EXPECT_EQ(cause_of(exited(0)), DeathCause::kClean);
  EXPECT_EQ(cause_of(exited(1)), DeathCause::kClean);
  EXPECT_EQ(cause_of(exited(125)), DeathCause::kRefuses);
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGFPE}) {
    EXPECT_EQ(cause_of(s), DeathCause::kDirty);
    EXPECT_EQ(cause_of(s | 0x80), DeathCause::kDirty) << "with a core dump";
    EXPECT_FALSE(killed_from_outside(s));
  }
  EXPECT_TRUE(killed_from_outside(SIGKILL));
  EXPECT_FALSE(killed_from_outside(exited(1)));
}

}  // namespace
}  // namespace wisp::launch
