#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "launch/regions.hpp"
#include "service/stage.hpp"
#include "toy_run.hpp"

namespace wisp::service {
namespace {

using shm::EdgeId;
using shm::StageId;

/// Desks of a run in this process, each mapped once: two mappings of a page would hide races from TSan.
class Desks {
 public:
  Desks() {
    const plan::RunPlan plan = launch::test::toy_plan();
    auto regions = launch::Regions::create(plan, 1);
    EXPECT_TRUE(regions.ok());
    regions_ = std::make_unique<launch::Regions>(std::move(*regions));
    at_.plan = plan;
    at_.life = &regions_->life();
    for (const launch::Grant& g : regions_->grants({shm::kRunningStages.begin(), shm::kRunningStages.end()}))
      for (StageId s : shm::kRunningStages) {
        if (g.number == fds::bell(s)) at_.bell[shm::index(s)] = ring::Doorbell(g.fd);
        if (g.number != fds::desk(s)) continue;
        auto m = std::make_shared<shm::Mapping>(std::move(*shm::Mapping::map(g.fd, true)));
        at_.desk[shm::index(s)] = static_cast<shm::Desk*>(m->data());
        at_.mappings.push_back(m);
      }
  }
  const Attachment& at() const { return at_; }

 private:
  std::unique_ptr<launch::Regions> regions_;
  Attachment at_;
};

constexpr std::uint64_t kMessages = 20000;

/// Takes messages one by one and sleeps after each: every message is a chance to lose a wake-up.
class Taker final : public Stage {
 public:
  Taker(StageContext& ctx, std::atomic<std::uint64_t>& taken)
      : consumer_(ctx.consumer(EdgeId::kGatewayRouter)), taken_(taken) {}
  bool poll() override {
    const auto* d = consumer_.front();
    if (d == nullptr) return false;
    EXPECT_EQ(d->aux, taken_.load());
    taken_.store(taken_.load() + 1);
    consumer_.pop();
    return false;
  }
  bool has_work() override { return !consumer_.empty(); }

 private:
  ring::Consumer consumer_;
  std::atomic<std::uint64_t>& taken_;
};

TEST(Host, NoWakeUpIsLost) {
  const Desks desks;
  StageContext sender(desks.at(), StageId::kGateway, 1);
  StageContext receiver(desks.at(), StageId::kRouter, 1);
  std::atomic<std::uint64_t> taken = 0;
  std::thread thread([&] {
    Taker stage(receiver, taken);
    run_stage(receiver, stage, [&] { return taken.load() == kMessages; });
  });
  auto producer = sender.producer(EdgeId::kGatewayRouter);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    ring::Message m;
    m.kind = ring::Kind::kCancel;
    m.aux = i;
    while (!producer.publish(m))
      sender.wait(shm::WaitFor::kRingSpace, 1, [&] { return producer.has_space(0); });
    // Lock step now and then, so that the receiver is asleep when the next one comes.
    if (i % 2 == 0)
      while (taken.load() <= i) std::this_thread::yield();
  }
  while (taken.load() != kMessages) std::this_thread::yield();
  receiver.bell(StageId::kRouter).ring();  // it sleeps again after the last message
  thread.join();
  EXPECT_GT(receiver.desk()->get(stats::Counter::kParks), 0u);
}

TEST(Host, SleepNamesWhatItWaitsForAndReportsExtraDescriptors) {
  const Desks desks;
  StageContext ctx(desks.at(), StageId::kLoader, 1);
  const int fd = ::eventfd(1, EFD_CLOEXEC);
  std::vector<pollfd> extra{{fd, POLLIN, 0}};
  bool seen = false;
  ctx.sleep(
      shm::WaitFor::kDrive, 17,
      [&] {
        seen = ctx.desk()->parked.load() == 1 && ctx.desk()->waits_detail.load() == 17 &&
               ctx.desk()->waits_for.load() == static_cast<std::uint32_t>(shm::WaitFor::kDrive);
        return false;
      },
      &extra);
  EXPECT_TRUE(seen);
  EXPECT_EQ(extra[0].revents, POLLIN);
  EXPECT_EQ(ctx.desk()->parked.load(), 0u);
  EXPECT_EQ(ctx.desk()->waits_for.load(), static_cast<std::uint32_t>(shm::WaitFor::kNothing));
  ::close(fd);
}

TEST(Host, SleepEndsByItsTimeout) {
  const Desks desks;
  StageContext ctx(desks.at(), StageId::kLoader, 1);
  const std::uint64_t before = shm::monotonic_now();
  ctx.sleep(
      shm::WaitFor::kWork, 0, [] { return false; }, nullptr, 1'000'000);
  EXPECT_GE(shm::monotonic_now() - before, 1'000'000u);
}

TEST(Host, AStageRingsItsPeersFirst) {
  const Desks desks;
  StageContext ctx(desks.at(), StageId::kRouter, 1);
  struct Idle final : Stage {
    bool poll() override { return true; }
    bool has_work() override { return false; }
  } idle;
  run_stage(ctx, idle, [] { return true; });
  for (StageId s : shm::kRunningStages) {
    pollfd p{desks.at().bell[shm::index(s)].fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, 0), s == StageId::kRouter ? 0 : 1) << shm::name_of(s);
  }
}

TEST(HostDeathTest, AnArmedPointKillsAtItsCount) {
  EXPECT_EXIT(
      {
        detail::Armed armed;
        armed.point.store(static_cast<std::uint32_t>(CrashPoint::kSampled));
        armed.countdown.store(3);
        detail::armed = &armed;
        crash_point(CrashPoint::kAfterFill);
        crash_point(CrashPoint::kSampled);
        crash_point(CrashPoint::kSampled);
        std::fprintf(stderr, "two passed\n");
        crash_point(CrashPoint::kSampled);
      },
      testing::KilledBySignal(SIGKILL), "two passed");
}

}  // namespace
}  // namespace wisp::service
