#include "services/bench/roofs.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

namespace wisp::bench {
namespace {

/// The loop reads every byte once: its sum is that of all words, and turns with each of them.
TEST(Roofs, TheSumIsThatOfAllWords) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  constexpr std::size_t kBytes = 512 * 37;
  struct alignas(64) Block {
    std::uint64_t words[kBytes / 8];
  };
  const auto block = std::make_unique<Block>();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(block->words);
  std::uint64_t sum = 0;
  for (auto& w : block->words) sum += w = random();
  EXPECT_EQ(machine_roofs().read_sum(bytes, kBytes, 8192), sum);
  EXPECT_EQ(machine_roofs().read_sum(bytes, 0, 8192), 0u);
  for (int i = 0; i < 200; ++i) {
    auto& w = block->words[random() % (kBytes / 8)];
    sum -= w;
    sum += w = random();
    ASSERT_EQ(machine_roofs().read_sum(bytes, kBytes, 0), sum);
  }
}

TEST(Roofs, MultiplyAddsAreInProportionToTheSteps) {
  for (const auto loop : {machine_roofs().int8_macs, machine_roofs().f32_macs}) {
    const std::uint64_t one = loop(1);
    EXPECT_GT(one, 0u);
    EXPECT_EQ(loop(1000), 1000 * one);
  }
}

}  // namespace
}  // namespace wisp::bench
