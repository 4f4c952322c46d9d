#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "rig.hpp"
#include "shm/population.hpp"

namespace wisp::loader {
namespace {

constexpr std::uint64_t kPage = 4096;

/// A mapping of which only the front is backed by a file: what a system without memory looks like.
struct HalfMapping {
  explicit HalfMapping(std::uint64_t size, std::uint64_t backed) : bytes(size) {
    fd.reset(::memfd_create("half", MFD_CLOEXEC));
    WISP_CHECK(::ftruncate(fd.get(), static_cast<off_t>(backed)) == 0);
    data = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    WISP_CHECK(data != MAP_FAILED);
  }
  ~HalfMapping() { ::munmap(data, bytes); }
  HalfMapping(const HalfMapping&) = delete;
  HalfMapping& operator=(const HalfMapping&) = delete;
  std::uint64_t resident() const {
    std::vector<unsigned char> in(bytes / kPage);
    if (::mincore(data, bytes, in.data()) != 0) return 0;
    std::uint64_t n = 0;
    for (const unsigned char c : in) n += c & 1;
    return n * kPage;
  }
  Fd fd;
  std::byte* data = nullptr;
  std::uint64_t bytes;
};

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!shm::can_populate()) GTEST_SKIP() << "this kernel cannot populate a mapping (Linux 5.14 can)";
  }
};

TEST_F(Memory, ComesInOrderPieceByPiece) {
  HalfMapping m(9 << 20, 9 << 20);
  shm::Population p({m.data, m.bytes}, shm::Population::Access::kWrite);
  std::uint64_t before = 0;
  while (!p.finished()) {
    ASSERT_TRUE(p.step().ok());
    EXPECT_GT(p.reached(), before);
    EXPECT_LE(p.reached() - before, shm::Population::kPiece);
    EXPECT_EQ(m.resident(), p.reached());
    before = p.reached();
  }
  EXPECT_TRUE(p.step().ok()) << "nothing is left to do";
}

TEST_F(Memory, WhatIsNeededEarlierComesEarlier) {
  HalfMapping m(8 << 20, 8 << 20);
  shm::Population p({m.data, m.bytes}, shm::Population::Access::kWrite);
  ASSERT_TRUE(p.ensure(5 << 20, 1 << 20).ok());
  EXPECT_EQ(m.resident(), std::uint64_t{1} << 20);
  EXPECT_EQ(p.reached(), 0u);
  ASSERT_TRUE(p.reach(8 << 20).ok());
  EXPECT_EQ(m.resident(), m.bytes);
}

TEST_F(Memory, ItsEndIsAnErrorWithTheNumbersNotASignal) {
  HalfMapping m(8 << 20, 4 << 20);
  shm::Population p({m.data, m.bytes}, shm::Population::Access::kWrite);
  Status s = p.step();
  while (s.ok() && !p.finished()) s = p.step();
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().code, ErrorCode::kExhausted);
  EXPECT_NE(s.error().text.find(std::to_string(8 << 20)), std::string::npos) << s.error().text;
  EXPECT_NE(s.error().text.find("--ram"), std::string::npos) << s.error().text;
  EXPECT_LE(p.reached(), std::uint64_t{4} << 20);
  EXPECT_FALSE(p.ensure(6 << 20, 4096).ok());
  p.cut();
  EXPECT_TRUE(p.finished());
}

/// The slab's memory runs out behind the sixth of twelve slots: the loader goes on with six.
TEST_F(Memory, TheLoaderGoesOnWithTheSlotsThatItHas) {
  TinyModel model;
  Rig rig(model, 12);
  const std::uint64_t stride = rig.at().plan.stride;
  HalfMapping slab(12 * stride, 6 * stride);
  rig.at().slab = slab.data;
  ASSERT_TRUE(rig.start().ok());
  ASSERT_TRUE(rig.load_dense());
  for (std::uint32_t round = 0; round < 6; ++round) {
    rig.touch(round % 3, {round, round + 5, round + 10, 15});
    std::vector<Seen> seen;
    ASSERT_TRUE(rig.until([&] {
      for (Seen& s : rig.take()) seen.push_back(s);
      return seen.size() == 4;
    }));
    for (const Seen& s : seen) {
      EXPECT_EQ(s.kind, ring::Kind::kSlotReady) << s.text;
      EXPECT_LT(s.slot, 6u);
    }
  }
  EXPECT_LE(rig.in_state(slab::SlotState::kReady), 6u);
  for (std::uint32_t s = 0; s < 6; ++s)
    EXPECT_TRUE(rig.word(s).state != slab::SlotState::kReady || rig.intact(s));
}

TEST_F(Memory, TheSlabIsBroughtWhileComputeSleeps) {
  TinyModel model;
  Rig rig(model, 12);
  HalfMapping slab(rig.at().plan.slab_bytes(), rig.at().plan.slab_bytes());
  rig.at().slab = slab.data;
  ASSERT_TRUE(rig.start().ok());
  ASSERT_TRUE(rig.load_dense());
  rig.desk(shm::StageId::kCompute)->waits_for.store(static_cast<std::uint32_t>(shm::WaitFor::kWork));
  ASSERT_TRUE(rig.until([&] { return rig.board()->slab_in_memory.load() == slab.bytes; }));
  EXPECT_EQ(slab.resident(), slab.bytes);
}

}  // namespace
}  // namespace wisp::loader
