#include "services/bench/crew.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <vector>

namespace wisp::bench {
namespace {

std::uint32_t allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return static_cast<std::uint32_t>(CPU_COUNT(&set));
}

/// What a thread wrote before it came, every other sees behind the barrier: plain numbers, no atomics.
TEST(Crew, TheBarrierLetsNobodyPassBeforeAllHaveCome) {
  const std::uint32_t threads = std::min(allowed_cpus(), 4u);
  constexpr std::uint32_t kRounds = 20'000;
  std::vector<std::uint32_t> rounds(threads, 0);
  std::vector<std::uint32_t> wrong(threads, 0);
  ASSERT_TRUE(run_pinned(threads, [&](std::uint32_t thread, SpinBarrier& barrier) {
                for (std::uint32_t r = 1; r <= kRounds; ++r) {
                  rounds[thread] = r;
                  barrier.meet();
                  for (const std::uint32_t other : rounds) wrong[thread] += other != r;
                  barrier.meet();
                }
              }).ok());
  EXPECT_EQ(wrong, std::vector<std::uint32_t>(threads, 0));
}

TEST(Crew, EachThreadHasACpuOfItsOwn) {
  const std::uint32_t threads = std::min(allowed_cpus(), 4u);
  std::vector<cpu_set_t> sets(threads);
  ASSERT_TRUE(run_pinned(threads, [&](std::uint32_t thread, SpinBarrier&) {
                CPU_ZERO(&sets[thread]);
                sched_getaffinity(0, sizeof sets[thread], &sets[thread]);
              }).ok());
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const cpu_set_t& s : sets) {
    EXPECT_EQ(CPU_COUNT(&s), 1);
    CPU_OR(&all, &all, &s);
  }
  EXPECT_EQ(CPU_COUNT(&all), static_cast<int>(threads));
}

TEST(Crew, MoreThreadsThanCpusAreRefused) {
  const std::uint32_t cpus = allowed_cpus();
  for (const std::uint32_t n : {0u, cpus + 1}) {
    const Status s = run_pinned(n, [](std::uint32_t, SpinBarrier&) { FAIL(); });
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.error().text.find(std::to_string(n) + " threads"), std::string::npos) << s.error().text;
    EXPECT_NE(s.error().text.find(std::to_string(cpus) + " CPUs"), std::string::npos) << s.error().text;
  }
}

}  // namespace
}  // namespace wisp::bench
