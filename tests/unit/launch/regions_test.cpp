#include "launch/regions.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "service/fds.hpp"
#include "shm/population.hpp"
#include "slab/slot_word.hpp"
#include "toy_run.hpp"

namespace wisp::launch::test {
namespace {

namespace fds = service::fds;
using shm::StageId;

bool can_map_writable(int fd) {
  void* p = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return false;
  ::munmap(p, 4096);
  return true;
}

std::uint64_t size_of(int fd) {
  struct stat st {};
  ::fstat(fd, &st);
  return static_cast<std::uint64_t>(st.st_size);
}

/// Region descriptors by number: 'w' writable, 'r' read-only.
std::map<int, char> access_of(const Regions& r, StageId s) {
  std::map<int, char> out;
  for (const Grant& g : r.grants({s})) {
    if (g.number >= fds::kBellBase) continue;
    out[g.number] = can_map_writable(g.fd) ? 'w' : 'r';
  }
  return out;
}

TEST(Regions, HaveTheSizesOfThePlan) {
  const plan::RunPlan plan = toy_plan();
  auto r = Regions::create(plan, 42);
  ASSERT_TRUE(r.ok()) << r.error().text;
  std::map<int, std::uint64_t> size;
  for (const Grant& g : r->grants({shm::kRunningStages.begin(), shm::kRunningStages.end()}))
    size[g.number] = size_of(g.fd);
  EXPECT_EQ(size[fds::kSlab], plan.slab_bytes());
  EXPECT_EQ(size[fds::kDense], plan.dense_bytes);
  EXPECT_EQ(size[fds::kSlabDir], slab::slab_dir_size(plan.slots, plan.layers, plan.experts_per_layer));
  EXPECT_EQ(size[fds::kKv], shm::kv_size(plan.kv_pages, plan.kv_page_bytes));
  EXPECT_EQ(size[fds::kJournal], shm::journal_size(plan.records, plan.ctx, plan.options.logprobs));
  std::uint64_t sum = 0;
  for (StageId s : shm::kRunningStages) {
    EXPECT_EQ(size[fds::desk(s)], shm::desk_size(s, plan::desk_plan(plan, s)));
    EXPECT_EQ(r->desk(s)->region.run_id, 42u);
    sum += size[fds::desk(s)];
  }
  EXPECT_GE(r->allocated(), sum + size[fds::kJournal]) << "backed by memory";
  for (const Grant& g : r->grants({StageId::kLoader})) {
    if (g.number != fds::kSlab && g.number != fds::kDense) continue;
    struct stat st {};
    ASSERT_EQ(::fstat(g.fd, &st), 0);
    EXPECT_EQ(st.st_blocks == 0, shm::can_populate()) << "their memory is the loader's to take";
  }
}

TEST(Regions, EachStageGetsOnlyWhatItMayHave) {
  auto r = Regions::create(toy_plan(), 1);
  ASSERT_TRUE(r.ok()) << r.error().text;
  const auto desks = [](StageId own) {
    std::map<int, char> m{{fds::kLife, 'r'}};
    for (StageId s : shm::kRunningStages) m[fds::desk(s)] = s == own ? 'w' : 'r';
    return m;
  };
  auto expected = desks(StageId::kGateway);
  expected[fds::kJournal] = 'r';
  EXPECT_EQ(access_of(*r, StageId::kGateway), expected);
  expected = desks(StageId::kRouter);
  expected[fds::kJournal] = 'w';
  expected[fds::kSlabDir] = 'r';
  EXPECT_EQ(access_of(*r, StageId::kRouter), expected);
  expected = desks(StageId::kLoader);
  for (int n : {fds::kSlab, fds::kDense, fds::kSlabDir}) expected[n] = 'w';
  EXPECT_EQ(access_of(*r, StageId::kLoader), expected);
  expected = desks(StageId::kCompute);
  for (int n : {fds::kSlab, fds::kDense, fds::kSlabDir}) expected[n] = 'r';
  expected[fds::kKv] = 'w';
  expected[fds::kJournal] = 'r';
  EXPECT_EQ(access_of(*r, StageId::kCompute), expected);
  expected = desks(StageId::kSpeculator);
  expected[fds::kJournal] = 'r';
  EXPECT_EQ(access_of(*r, StageId::kSpeculator), expected);
}

TEST(Regions, ADraftHeadReadsItsModelsWeightsAndRows) {
  plan::RunPlan plan = toy_plan();
  plan.head_bytes = 4096;
  auto r = Regions::create(plan, 1);
  ASSERT_TRUE(r.ok()) << r.error().text;
  const auto own = access_of(*r, StageId::kSpeculator);
  for (const int n : {fds::kDense, fds::kKv, fds::kJournal}) EXPECT_EQ(own.at(n), 'r');
  EXPECT_EQ(own.count(fds::kSlab), 0u);
  EXPECT_EQ(access_of(*r, StageId::kCompute).at(fds::kKv), 'w');
  EXPECT_EQ(access_of(*r, StageId::kLoader).at(fds::kDense), 'w');
  EXPECT_EQ(access_of(*r, StageId::kRouter).count(fds::kKv), 0u);
}

TEST(Regions, WhatAnybodyMayReadRefusesWritableMaps) {
  auto r = Regions::create(toy_plan(), 1);
  ASSERT_TRUE(r.ok()) << r.error().text;
  EXPECT_EQ(r->readable().size(), 8u);
  for (const NamedFd& n : r->readable()) EXPECT_FALSE(can_map_writable(n.fd)) << n.name;
}

TEST(Regions, AreSealedAgainstResizing) {
  auto r = Regions::create(toy_plan(), 1);
  ASSERT_TRUE(r.ok()) << r.error().text;
  for (const Grant& g : r->grants({StageId::kLoader})) {
    if (g.number != fds::kSlab) continue;
    EXPECT_NE(::ftruncate(g.fd, 0), 0);
    EXPECT_NE(::ftruncate(g.fd, 1 << 30), 0);
  }
}

TEST(Regions, RenewKeepsJournalAndLifeAlone) {
  const plan::RunPlan plan = toy_plan();
  auto r = Regions::create(plan, 1);
  ASSERT_TRUE(r.ok()) << r.error().text;
  const auto write_to = [&](int number, StageId s) {
    for (const Grant& g : r->grants({s})) {
      if (g.number == number) {
        auto m = shm::Mapping::map(g.fd, true);
        EXPECT_TRUE(m.ok());
        return std::move(*m);
      }
    }
    return shm::Mapping();
  };
  const auto journal = write_to(fds::kJournal, StageId::kRouter);
  static_cast<shm::Journal*>(journal.data())->next_order.store(99);
  const auto desk = write_to(fds::desk(StageId::kRouter), StageId::kRouter);
  static_cast<shm::Desk*>(desk.data())->set(stats::Counter::kTokensCommitted, 5);
  r->life().stage[0].epoch.store(3);
  EXPECT_EQ(r->progress().tokens, 5u);

  ASSERT_TRUE(r->renew().ok());
  EXPECT_EQ(r->generation(), 2u);
  EXPECT_EQ(r->life().stage[0].epoch.load(), 3u);
  EXPECT_EQ(r->desk(StageId::kRouter)->get(stats::Counter::kTokensCommitted), 0u);
  EXPECT_EQ(r->desk(StageId::kRouter)->region.generation, 2u);
  EXPECT_EQ(r->progress().tokens, 5u) << "progress is counted over all generations";
  const auto again = write_to(fds::kJournal, StageId::kRouter);
  EXPECT_EQ(static_cast<shm::Journal*>(again.data())->next_order.load(), 99u);
  const auto kv = write_to(fds::kKv, StageId::kCompute);
  EXPECT_EQ(static_cast<shm::Kv*>(kv.data())->region.generation, 2u);
}

}  // namespace
}  // namespace wisp::launch::test
