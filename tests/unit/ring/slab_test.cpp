#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "slab/lease.hpp"

namespace wisp::slab {
namespace {

TEST(SlotWord, PacksAndUnpacks) {
  const SlotWord w{SlotState::kEvicting, SlotWord::kGenerationMask - 3, 0xdeadbeefu};
  const SlotWord u = SlotWord::unpack(w.pack());
  EXPECT_EQ(u.state, w.state);
  EXPECT_EQ(u.generation, w.generation);
  EXPECT_EQ(u.key, w.key);
  EXPECT_EQ(SlotWord::next_generation(SlotWord::kGenerationMask), 1u);
}

/// A directory of `slots` in plain memory.
class TestDir {
 public:
  explicit TestDir(std::uint32_t slots) : bytes_(slab_dir_size(slots, 2, 8) / 8), leases_(slots) {
    init_slab_dir(bytes_.data(), slots, 2, 8, 4096, 1, 1);
  }
  SlabDir* get() { return reinterpret_cast<SlabDir*>(bytes_.data()); }
  LeaseRow* row() { return reinterpret_cast<LeaseRow*>(leases_.data()); }

 private:
  std::vector<std::uint64_t> bytes_;
  std::vector<std::atomic<std::uint64_t>> leases_;
};

TEST(Lease, OnlyWhatIsReadyAndNamed) {
  TestDir t(2);
  SlabDir* d = t.get();
  EXPECT_EQ(try_lease(t.row(), d, 0, 5), 0u);
  d->entries()[0].word.store(SlotWord{SlotState::kReady, 9, 5}.pack());
  EXPECT_EQ(try_lease(t.row(), d, 0, 6), 0u);
  EXPECT_EQ(t.row()->generation[0].load(), 0u);
  EXPECT_EQ(try_lease(t.row(), d, 0, 5), 9u);
  EXPECT_EQ(t.row()->generation[0].load(), 9u);
  release_lease(t.row(), 0);
  EXPECT_EQ(t.row()->generation[0].load(), 0u);
  d->entries()[0].word.store(SlotWord{SlotState::kEvicting, 9, 5}.pack());
  EXPECT_EQ(try_lease(t.row(), d, 0, 5), 0u);
}

/// Lease against evict: a reader that holds a lease never sees the slot's contents change.
TEST(Lease, NeverSeesAnEviction) {
  TestDir t(1);
  SlabDir* d = t.get();
  LeaseRow* row = t.row();
  std::atomic<std::uint64_t> payload{1};
  std::atomic<std::uint64_t> leased{0};
  std::atomic<bool> stop{false};
  d->entries()[0].word.store(SlotWord{SlotState::kReady, 1, 0}.pack());
  std::thread evictor([&] {
    std::uint32_t generation = 1;
    // Until they have met often enough: on a busy machine 20,000 rounds may pass before the reader's first.
    for (int round = 0; round < 20000 || leased.load(std::memory_order_relaxed) < 500; ++round) {
      d->entries()[0].word.store(SlotWord{SlotState::kEvicting, generation, 0}.pack(),
                                 std::memory_order_seq_cst);
      if (row->generation[0].load(std::memory_order_seq_cst) != 0) {
        d->entries()[0].word.store(SlotWord{SlotState::kReady, generation, 0}.pack(),
                                   std::memory_order_seq_cst);
        std::this_thread::yield();
        continue;
      }
      generation = SlotWord::next_generation(generation);
      d->entries()[0].word.store(SlotWord{SlotState::kFilling, generation, 0}.pack(),
                                 std::memory_order_seq_cst);
      payload.store(generation, std::memory_order_relaxed);
      d->entries()[0].word.store(SlotWord{SlotState::kReady, generation, 0}.pack(),
                                 std::memory_order_seq_cst);
    }
    stop = true;
  });
  while (!stop) {
    const std::uint32_t g = try_lease(row, d, 0, 0);
    if (g == 0) continue;
    leased.fetch_add(1, std::memory_order_relaxed);
    EXPECT_EQ(payload.load(std::memory_order_relaxed), g);
    std::this_thread::yield();
    EXPECT_EQ(payload.load(std::memory_order_relaxed), g);
    release_lease(row, 0);
  }
  evictor.join();
}

}  // namespace
}  // namespace wisp::slab
