#include "services/bench/stream_bench.hpp"

#include <gtest/gtest.h>

#include <atomic>

namespace wisp::bench {
namespace {

StreamOptions small() {
  StreamOptions o;
  o.size = 64 << 10;
  o.bank = 1 << 20;
  o.turn_bytes = 4 << 20;  // the bank four times over
  o.pairs = 1;
  o.folder = testing::TempDir();
  return o;
}

TEST(StreamBench, ReadsWhatItSays) {
  const auto b = StreamBench::create(small());
  ASSERT_TRUE(b.ok()) << b.error().text;
  const auto f = (*b)->measure();
  ASSERT_TRUE(f.ok()) << f.error().text;
  EXPECT_EQ(f->expert_bytes, 4u << 20);
  EXPECT_EQ(f->loader_ms.size(), 64u);
  EXPECT_EQ(f->plain_ms.size(), 64u);
}

/// It is asked before each read, so that no turn, however long, is waited for.
TEST(StreamBench, StopsBetweenTwoReads) {
  std::atomic<int> asked{0};
  StreamOptions o = small();
  o.stop = [&] { return ++asked > 3; };
  const auto b = StreamBench::create(o);
  ASSERT_TRUE(b.ok()) << b.error().text;
  const auto plain = (*b)->plain_gb_s();
  ASSERT_FALSE(plain.ok());
  EXPECT_EQ(plain.error().code, ErrorCode::kInterrupted);
  EXPECT_LT(asked.load(), 32) << "64 reads make a turn";
  asked = 0;
  EXPECT_EQ((*b)->measure().error().code, ErrorCode::kInterrupted);
}

TEST(StreamBench, RefusesWhatWouldNeverEnd) {
  StreamOptions o = small();
  for (const std::uint64_t depth : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
    o.depth = depth;
    const auto b = StreamBench::create(o);
    ASSERT_FALSE(b.ok());
    EXPECT_NE(b.error().text.find("--depth"), std::string::npos) << b.error().text;
  }
  o = small();
  o.size = ~std::uint64_t{0};
  EXPECT_EQ(StreamBench::create(o).error().code, ErrorCode::kInvalid);
  o = small();
  o.bank = std::uint64_t{1} << 60;
  EXPECT_EQ(StreamBench::create(o).error().code, ErrorCode::kExhausted);
}

}  // namespace
}  // namespace wisp::bench
