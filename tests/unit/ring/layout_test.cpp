#include <gtest/gtest.h>

#include <cstddef>

#include "base/crc32c.hpp"
#include "shm/desk.hpp"
#include "shm/journal.hpp"
#include "shm/life.hpp"
#include "slab/slot_word.hpp"

namespace wisp::shm {
namespace {

/// Golden offsets: a change here is a change of layout. Of one that was released, kLayoutVersion must go up
/// with it; between releases the hash tells builds apart.
TEST(Layout, Golden) {
  EXPECT_EQ(sizeof(RegionHeader), 48u);
  EXPECT_EQ(sizeof(ring::Descriptor), 64u);
  EXPECT_EQ(offsetof(ring::Descriptor, arena_off), 40u);
  EXPECT_EQ(offsetof(ring::Descriptor, aux), 56u);
  EXPECT_EQ(sizeof(StageLife), 304u);
  EXPECT_EQ(offsetof(Life, gate), 64u);
  EXPECT_EQ(offsetof(Life, stage), 384u);
  EXPECT_EQ(offsetof(Desk, attached_epoch), 512u);
  EXPECT_EQ(offsetof(Desk, parked), 640u);
  EXPECT_EQ(offsetof(Desk, rx_head), 768u);
  EXPECT_EQ(offsetof(Desk, tx_tail), 2304u);
  EXPECT_EQ(offsetof(Desk, counter), 3840u);
  EXPECT_EQ(sizeof(slab::SlotEntry), 16u);
  EXPECT_EQ(sizeof(RequestParams), 128u);
  EXPECT_EQ(offsetof(JournalRecord, commit), 16u);
  EXPECT_EQ(offsetof(JournalRecord, params), 64u);
  EXPECT_EQ(offsetof(Journal, logprobs), 60u);
  EXPECT_EQ(logprob_words(1 + kMostTopLogprobs), 41u);
}

TEST(Layout, RingsAndArenasDoNotOverlap) {
  DeskPlan plan;
  for (auto& a : plan.arena_bytes) a = 10000;
  plan.extra_bytes = 1234;
  for (const StageId s : kRunningStages) {
    const std::uint64_t size = desk_size(s, plan);
    std::vector<std::byte> bytes(size);
    init_desk(bytes.data(), s, plan, 1, 1);
    const auto* d = reinterpret_cast<const Desk*>(bytes.data());
    std::uint64_t end = sizeof(Desk);
    for (const EdgeId e : kAllEdges) {
      if (ends_of(e).from != s) continue;
      const EdgePlace& p = d->edges[index(e)];
      EXPECT_GE(p.ring_offset, end);
      EXPECT_GE(p.arena_offset, p.ring_offset + p.slots * sizeof(ring::Descriptor));
      EXPECT_GE(p.arena_size, 10000u);
      end = p.arena_offset + p.arena_size;
    }
    EXPECT_GE(d->extra_offset, end);
    EXPECT_LE(d->extra_offset + plan.extra_bytes, size);
  }
}

TEST(CommitWord, OneWordHoldsAll) {
  const CommitWord c = CommitWord::unpack(CommitWord{0xabcdef, Finish::kStopString, 0x12345678u}.pack());
  EXPECT_EQ(c.length, 0xabcdefu);
  EXPECT_EQ(c.finish, Finish::kStopString);
  EXPECT_EQ(c.crc, 0x12345678u);
}

/// RFC 3720 B.4.
TEST(Crc32c, PublishedVectors) {
  const std::vector<unsigned char> zeros(32, 0), ones(32, 0xff);
  EXPECT_EQ(crc32c(0, zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(0, ones.data(), 32), 0x62a8ab43u);
  const std::uint32_t half = crc32c(0, zeros.data(), 10);
  EXPECT_EQ(crc32c(half, zeros.data() + 10, 22), 0x8a9136aau);
}

TEST(EngineClock, StandsStillWhilePaused) {
  Life life{};
  const std::uint64_t t0 = engine_now(life);
  life.paused_since_ns.store(monotonic_now());
  const std::uint64_t a = engine_now(life);
  const std::uint64_t b = engine_now(life);
  EXPECT_EQ(a, b);
  EXPECT_GE(a, t0);
}

}  // namespace
}  // namespace wisp::shm
