#include "services/compute/expert_client.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "../ring/ring_fixture.hpp"

namespace wisp::compute {
namespace {

using ring::expert_key;
using service::CrashPoint;
using shm::StageId;
using slab::SlotState;
using slab::SlotWord;

constexpr std::uint32_t kSlots = 2, kExperts = 8, kStride = 64;

/// The client over desks in shared memory; the test plays the loader, also from inside the client's waits.
class ExpertClientTest : public ::testing::Test {
 protected:
  ExpertClientTest() : dir_(slab::slab_dir_size(kSlots, 1, kExperts)), slab_(kSlots * kStride) {
    slab::init_slab_dir(dir_.data(), kSlots, 1, kExperts, kStride, 1, 1);
    at_.desk[shm::index(StageId::kCompute)] = desks_.compute.get();
    at_.desk[shm::index(StageId::kLoader)] = desks_.loader.get();
    at_.bell[shm::index(StageId::kCompute)] = desks_.compute_bell;
    at_.bell[shm::index(StageId::kLoader)] = desks_.loader_bell;
    at_.slab_dir = dir();
    at_.slab = slab_.data();
    desks_.loader.get()->attached_epoch.store(1);
    answers_ = ring::Producer(desks_.loader.get(), desks_.compute.get(), shm::EdgeId::kLoaderCompute,
                              desks_.compute_bell);
  }

  slab::SlabDir* dir() { return reinterpret_cast<slab::SlabDir*>(dir_.data()); }
  shm::Desk* desk() { return desks_.compute.get(); }
  std::uint64_t lease(std::uint32_t slot) {
    return shm::extra_of<slab::LeaseRow>(desk())->generation[slot].load();
  }
  std::uint64_t answers_taken() {
    return desk()->rx_head[shm::index(shm::EdgeId::kLoaderCompute)].value.load();
  }

  void make_ready(std::uint32_t slot, std::uint32_t expert, std::uint32_t generation) {
    dir()->entries()[slot].word.store(SlotWord{SlotState::kReady, generation, expert_key(0, expert)}.pack());
    for (std::uint32_t e = 0; e < kExperts; ++e)
      if (dir()->index()[e].load() == slot + 1) dir()->index()[e].store(0);
    dir()->index()[expert].store(slot + 1);
  }
  void answer(std::uint32_t slot, std::uint32_t expert) {
    ring::Message m;
    m.kind = ring::Kind::kSlotReady;
    m.key = expert_key(0, expert);
    m.slot = slot;
    ASSERT_TRUE(answers_.publish(m));
  }
  /// Visits the set; `play` is the loader's turn at each look of a client that waits. False where it waits in
  /// vain.
  bool visit(ExpertClient& client, std::vector<ring::TouchMember> set, const std::function<void()>& play) {
    int looks = 0;
    return client.visit(
        0, set, true,
        [&](std::span<const ReadyExpert> ready) {
          for (const ReadyExpert& r : ready) {
            EXPECT_NE(lease(static_cast<std::uint32_t>((r.extent - slab_.data()) / kStride)), 0u);
            used_.push_back(set[r.member].expert);
          }
        },
        [](std::uint32_t, const std::string& why) { ADD_FAILURE() << why; },
        [&] {
          desks_.compute_bell.ring();
          play();
          return ++looks > 100;
        });
  }

  wisp::testing::TestEdge desks_;
  std::vector<std::byte> dir_, slab_;
  service::Attachment at_;
  ring::Producer answers_;
  std::vector<std::uint32_t> used_;
};

/// With the fewest slots, the slot that the loader needs next is the one just used.
TEST_F(ExpertClientTest, HoldsNoLeaseWhileItWaits) {
  service::StageContext ctx(at_, StageId::kCompute, 1);
  ExpertClient client(ctx);
  make_ready(0, 3, 1);
  bool evicted = false;
  const bool whole = visit(client, {{3, 0, 1}, {5, 0, 1}}, [&] {
    for (std::uint32_t s = 0; s < kSlots; ++s)
      EXPECT_EQ(lease(s), 0u) << "slot " << s << " is held while waiting";
    if (!evicted) {
      make_ready(0, 5, 2);
      answer(0, 5);
    }
    evicted = true;
  });
  EXPECT_TRUE(whole);
  EXPECT_EQ(used_, (std::vector<std::uint32_t>{3, 5}));
  EXPECT_EQ(lease(0), 0u);
}

/// A slot must be seen as named by an unread answer or as leased: the lease comes first, then the head.
TEST_F(ExpertClientTest, LeasesBeforeTheHeadAdvances) {
  make_ready(1, 6, 9);
  dir()->index()[6].store(0);  // so that it is found by its answer only
  answer(1, 6);
  for (const CrashPoint point : {CrashPoint::kLeaseWritten, CrashPoint::kAfterEffectBeforeHead}) {
    const pid_t child = ::fork();
    if (child == 0) {
      service::StageContext ctx(at_, StageId::kCompute, 1);
      ExpertClient client(ctx);
      service::detail::Armed armed;
      armed.point = static_cast<std::uint32_t>(point);
      armed.countdown =
          point == CrashPoint::kLeaseWritten ? 2 : 1;  // it passes once for the hint of each member
      service::detail::armed = &armed;
      visit(client, {{6, 0, 1}}, [] {});
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(lease(1), 9u);
    EXPECT_EQ(answers_taken(), 0u) << "the answer is gone before its slot was leased";
  }
  service::StageContext ctx(at_, StageId::kCompute, 2);
  ExpertClient next(ctx);
  EXPECT_EQ(lease(1), 0u);
  EXPECT_TRUE(visit(next, {{6, 0, 1}}, [] {}));
  EXPECT_EQ(used_, (std::vector<std::uint32_t>{6}));
  EXPECT_EQ(answers_taken(), 1u);
}

/// An answer whose slot has been evicted since is not believed: the expert is asked for again.
TEST_F(ExpertClientTest, AsksAgainForWhatWasEvicted) {
  service::StageContext ctx(at_, StageId::kCompute, 1);
  ExpertClient client(ctx);
  make_ready(0, 1, 4);
  answer(0, 6);
  ring::Consumer loader(desks_.loader.get(), desk(), shm::EdgeId::kComputeLoader, desks_.compute_bell);
  bool asked = false;
  EXPECT_TRUE(visit(client, {{6, 0, 1}}, [&] {
    while (const ring::Descriptor* d = loader.front()) {
      if (d->kind == ring::Kind::kNeed) {
        EXPECT_EQ(d->key, expert_key(0, 6));
        asked = true;
        make_ready(0, 6, 5);
        answer(0, 6);
      }
      loader.pop();
    }
  }));
  EXPECT_TRUE(asked);
  EXPECT_EQ(used_, (std::vector<std::uint32_t>{6}));
}

}  // namespace
}  // namespace wisp::compute
