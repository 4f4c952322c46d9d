#include "services/compute/thread_pool.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace wisp::compute {
namespace {

constexpr std::uint64_t kMuch = 1ULL << 40;  // never too little to share

class Pools : public ::testing::TestWithParam<std::pair<std::uint32_t, bool>> {};

/// Thousands of loops of all lengths, with sleeps of the threads at random places between them.
TEST_P(Pools, RunEveryItemOnce) {
  const std::uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  ThreadPool pool(GetParam().first, GetParam().second);
  std::vector<std::atomic<std::uint32_t>> times(300);
  std::vector<std::uint64_t> plain(times.size());
  for (std::uint32_t loop = 0; loop < 4000; ++loop) {
    const auto items = static_cast<std::uint32_t>(random() % (loop % 8 == 0 ? times.size() : 6));
    const bool strangers = pool.threads() == 1;
    pool.run(items, random() % 4 == 0 ? 1 : kMuch, [&](std::uint32_t i, std::uint32_t thread) {
      times[i].fetch_add(1, std::memory_order_relaxed);
      plain[i] += i + 1;  // unsynchronised: the end of a loop is seen by the next
      EXPECT_LT(thread, strangers ? 1u : pool.threads());
    });
    for (std::uint32_t i = 0; i < times.size(); ++i)
      ASSERT_EQ(times[i].exchange(0), i < items ? 1u : 0u) << "loop " << loop << " item " << i;
    if (random() % 16 == 0) pool.rest();
    if (random() % 16 == 0) pool.wake();
  }
}

/// A thread that is stuck in an item keeps nothing else: the others do the rest.
TEST_P(Pools, AStuckThreadKeepsOneItem) {
  ThreadPool pool(GetParam().first, GetParam().second);
  if (pool.threads() == 1) return;
  for (int loop = 0; loop < 20; ++loop) {
    std::atomic<std::uint32_t> others{0};
    pool.run(64, kMuch, [&](std::uint32_t i, std::uint32_t) {
      if (i != 0) {
        others.fetch_add(1);
        others.notify_all();
        return;
      }
      for (std::uint32_t n = others.load(); n != 63; n = others.load()) others.wait(n);
    });
    EXPECT_EQ(others.load(), 63u);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Pools,
                         ::testing::Values(std::pair{1u, true}, std::pair{2u, true}, std::pair{2u, false},
                                           std::pair{5u, true}, std::pair{5u, false}),
                         [](const auto& i) {
                           return std::to_string(i.param.first) + (i.param.second ? "spinning" : "sleeping");
                         });

TEST(Pool, EndsWithoutALoop) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3, i % 2 == 0);
    if (i % 4 == 0) pool.rest();
  }
}

}  // namespace
}  // namespace wisp::compute
