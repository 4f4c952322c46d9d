#include "launch/supervisor.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "service/fds.hpp"
#include "toy_run.hpp"

namespace wisp::launch::test {
namespace {

using shm::StageId;
using shm::StageState;

bool exists(std::uint32_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0;
}

TEST(Supervisor, StartsAndStopsAndLeavesNothing) {
  ToyRun run;
  run.start_and_wait();
  EXPECT_EQ(run.count(Event::Kind::kAllReady), 1);
  EXPECT_NE(run.events.back().port, 0);
  std::vector<std::uint32_t> pids;
  for (StageId s : shm::kRunningStages) {
    pids.push_back(run.pid(s));
    EXPECT_EQ(run.epoch(s), 1u);
    EXPECT_EQ(run->regions().desk(s)->attached_epoch.load(), 1u);
  }
  EXPECT_GT(run->regions().life().ram_now_bytes.load(), 0u);
  EXPECT_FALSE(run.runtime.entries().empty());
  run.stop_and_wait();
  for (std::uint32_t pid : pids) EXPECT_FALSE(exists(pid));
  EXPECT_TRUE(run.runtime.entries().empty());
  EXPECT_EQ(run->regions().life().shutting_down.load(), 1u);
}

TEST(Supervisor, AKilledStageComesBackAloneWithANewEpoch) {
  ToyRun run;
  run.start_and_wait();
  const std::uint32_t router = run.pid(StageId::kRouter);
  for (std::uint32_t i = 1; i <= 8; ++i) {
    run.commit(i);
    run.kill(StageId::kCompute, SIGKILL);
    run.turn_until([&] { return run.epoch(StageId::kCompute) == i + 1 && run.all_ready(); });
    EXPECT_GE(run.life(StageId::kCompute).dead_through.load(), i);
    EXPECT_LT(run.life(StageId::kCompute).dead_through.load(), i + 1);
    EXPECT_EQ(run->regions().desk(StageId::kCompute)->attached_epoch.load(), i + 1);
  }
  EXPECT_EQ(run.pid(StageId::kRouter), router) << "nobody else was touched";
  EXPECT_EQ(run.epoch(StageId::kRouter), 1u);
  EXPECT_EQ(run.life(StageId::kCompute).restarts.load(), 8u);
  EXPECT_EQ(run->regions().life().resets.load(), 0u);
}

TEST(Supervisor, GivesUpAfterFiveDeathsWithoutProgressAndARestartTriesAgain) {
  ToyRun run;
  run.start_and_wait();
  for (std::uint32_t i = 1; i <= 5; ++i) {
    run.wait_all_ready();
    run.kill(StageId::kCompute, SIGKILL);
    run.turn_until([&] { return run.life(StageId::kCompute).dead_through.load() == i; });
  }
  EXPECT_EQ(run.life(StageId::kCompute).state.load(), static_cast<std::uint32_t>(StageState::kGivenUp));
  EXPECT_EQ(run.count(Event::Kind::kGivenUp), 1);
  EXPECT_NE(std::string(run->regions().life().give_up_reason).find("5 deaths"), std::string::npos);
  EXPECT_NE(run.pid(StageId::kGateway), 0u) << "the gateway lives to say so";
  auto answer = run.call([](proto::LaunchRequest::Builder b) { b.setRestart("compute"); });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  run.wait_all_ready();
  EXPECT_EQ(run.epoch(StageId::kCompute), 6u);
}

TEST(Supervisor, AStageThatOnlyMakesThingsFasterIsGivenUpAlone) {
  ToyRun run;
  run.start_and_wait();
  for (std::uint32_t i = 1; i <= 5; ++i) {
    run.wait_all_ready();
    run.kill(StageId::kSpeculator, SIGKILL);
    run.turn_until([&] { return run.life(StageId::kSpeculator).dead_through.load() == i; });
  }
  EXPECT_EQ(run.life(StageId::kSpeculator).state.load(), static_cast<std::uint32_t>(StageState::kGivenUp));
  EXPECT_EQ(run.count(Event::Kind::kGivenUp), 0) << "nobody ends for it";
  EXPECT_EQ(run->regions().life().give_up_reason[0], '\0');
  for (StageId s : shm::kRunningStages) {
    if (s != StageId::kSpeculator) {
      EXPECT_EQ(run.epoch(s), 1u);
    }
  }
  auto answer = run.call([](proto::LaunchRequest::Builder b) { b.setRestart("speculator"); });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  run.wait_all_ready();
  EXPECT_EQ(run.epoch(StageId::kSpeculator), 6u);
}

TEST(Supervisor, AStageThatRefusesAtStartEndsTheRun) {
  plan::RunPlan plan = toy_plan();
  plan.options.io = "refuse";
  ToyRun run(plan);
  run->start();
  while (run->turn(1000)) {
  }
  EXPECT_TRUE(run->failed_to_start());
  ASSERT_EQ(run.count(Event::Kind::kGivenUp), 1);
  EXPECT_EQ(run.epoch(StageId::kCompute), 1u);
  for (const Event& e : run.events) {
    if (e.kind == Event::Kind::kGivenUp) {
      EXPECT_NE(e.why.find("take another --io"), std::string::npos) << e.why;
    }
  }
}

TEST(Supervisor, TheTombstoneOfADeadLoaderIsSeen) {
  ToyRun run;
  run.start_and_wait();
  EXPECT_FALSE(run->regions().life().epoch_drained(1));
  run.kill(StageId::kLoader, SIGKILL);
  run.turn_until([&] { return run.epoch(StageId::kLoader) == 2 && run.all_ready(); });
  run.turn_until([&] { return run->regions().life().epoch_drained(1); });
  EXPECT_FALSE(run->regions().life().epoch_drained(2)) << "nobody but the living loader holds its write end";
}

TEST(Supervisor, AStoppedStageShowsAndHoldsTheEngineClock) {
  ToyRun run;
  run.start_and_wait();
  const shm::Life& life = run->regions().life();
  run.kill(StageId::kCompute, SIGSTOP);
  run.turn_until([&] { return run.life(StageId::kCompute).stopped.load() == 1; });
  const std::uint64_t stood = shm::engine_now(life);
  for (int i = 0; i < 3; ++i) run->turn(20);
  EXPECT_EQ(shm::engine_now(life), stood);
  EXPECT_EQ(run.epoch(StageId::kCompute), 1u) << "nothing kills a stage that is held";
  run.kill(StageId::kCompute, SIGCONT);
  run.turn_until([&] { return run.life(StageId::kCompute).stopped.load() == 0; });
  const std::uint64_t goes = shm::engine_now(life);
  EXPECT_GE(goes, stood);
  EXPECT_GT(life.pause_offset_ns.load(), 0u);
  EXPECT_EQ(life.paused_since_ns.load(), 0u);
}

/// Whoever sleeps for a change of `life` is rung by the launcher, also where no stage rings.
TEST(Supervisor, EachChangeOfLifeRingsTheBells) {
  ToyRun run;
  run.start_and_wait();
  // A stopped gateway silences no bell: what rings is found here.
  run.kill(StageId::kGateway, SIGSTOP);
  run.turn_until([&] { return run.life(StageId::kGateway).stopped.load() == 1; });
  const auto rung = [bell = run->regions().bell(StageId::kGateway)] {
    std::uint64_t n = 0;
    return ::read(bell, &n, sizeof n) == sizeof n;
  };
  // A stage rings its peers before it first sleeps.
  const auto settle = [&] {
    for (StageId s : {StageId::kRouter, StageId::kLoader, StageId::kCompute})
      run.turn_until([&] { return run->regions().desk(s)->parked.load() == 1; });
    (void)rung();
  };
  settle();
  run.kill(StageId::kCompute, SIGSTOP);
  run.turn_until([&] { return run.life(StageId::kCompute).stopped.load() == 1; });
  EXPECT_TRUE(rung()) << "stopped";
  run.kill(StageId::kCompute, SIGCONT);
  run.turn_until([&] { return run.life(StageId::kCompute).stopped.load() == 0; });
  EXPECT_TRUE(rung()) << "goes on";
  EXPECT_TRUE(run.call([](proto::LaunchRequest::Builder b) { b.setGate(~0ULL); }).ok());
  EXPECT_TRUE(rung()) << "the step gate";
  // Its tombstone does not hang up while a copy of the write end is open: as reads that may still land.
  const std::string end = "/proc/" + std::to_string(run.pid(StageId::kLoader)) + "/fd/" +
                          std::to_string(service::fds::kTombstone);
  Fd tombstone(::open(end.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(tombstone.valid());
  run.kill(StageId::kLoader, SIGKILL);
  run.turn_until([&] { return run.life(StageId::kLoader).dead_through.load() == 1; });
  EXPECT_TRUE(rung()) << "a death";
  run.turn_until([&] { return run.epoch(StageId::kLoader) == 2 && run.all_ready(); });
  run.turn_until([&] { return run->regions().desk(StageId::kLoader)->attached_epoch.load() == 2; });
  settle();
  EXPECT_FALSE(run->regions().life().epoch_drained(1));
  tombstone.reset();
  run.turn_until([&] { return run->regions().life().epoch_drained(1); });
  EXPECT_TRUE(rung()) << "a tombstone";
  run.kill(StageId::kGateway, SIGCONT);
}

TEST(Supervisor, AHeldStageCanBeKilledAndRestarted) {
  ToyRun run;
  run.start_and_wait();
  run.kill(StageId::kLoader, SIGSTOP);
  run.turn_until([&] { return run.life(StageId::kLoader).stopped.load() == 1; });
  run.kill(StageId::kLoader, SIGKILL);
  run.turn_until([&] { return run.epoch(StageId::kLoader) == 2 && run.all_ready(); });
  run.turn_until([&] { return run->regions().life().paused_since_ns.load() == 0; });
}

TEST(Supervisor, AFaultResetsEverythingButTheJournal) {
  ToyRun run;
  run.start_and_wait();
  run.commit(3);
  run.kill(StageId::kCompute, SIGSEGV);
  run.turn_until([&] { return run->regions().life().resets.load() == 1 && run.all_ready(); });
  EXPECT_EQ(run.count(Event::Kind::kReset), 1);
  EXPECT_EQ(run->regions().generation(), 2u);
  EXPECT_TRUE(run->regions().life().epoch_drained(1));
  for (StageId s : shm::kRunningStages) {
    EXPECT_EQ(run.epoch(s), 2u);
    EXPECT_EQ(run->regions().desk(s)->region.generation, 2u);
    EXPECT_EQ(run->regions().desk(s)->attached_epoch.load(), 2u);
  }
  for (const NamedFd& n : run->regions().readable()) {
    if (n.name != "journal") continue;
    auto m = shm::Mapping::map(n.fd, false);
    ASSERT_TRUE(m.ok());
    EXPECT_EQ(static_cast<const shm::Journal*>(m->data())->next_order.load(), 3u);
  }
}

TEST(Supervisor, FaultsWithoutProgressAreGivenUp) {
  ToyRun run;
  run.start_and_wait();
  for (std::uint32_t i = 1; i <= 5; ++i) {
    run.wait_all_ready();
    run.kill(StageId::kCompute, SIGABRT);
    run.turn_until([&] { return run.life(StageId::kCompute).dead_through.load() == i; });
  }
  run.turn_until([&] { return run->regions().life().resets.load() == 5; });
  EXPECT_EQ(run.life(StageId::kCompute).state.load(), static_cast<std::uint32_t>(StageState::kGivenUp));
  run.turn_until([&] {
    return run.life(StageId::kGateway).state.load() == static_cast<std::uint32_t>(StageState::kReady);
  });
}

TEST(Supervisor, AnArmedCrashPointKillsTheStageThere) {
  ToyRun run;
  run.start_and_wait();
  auto answer = run.call([](proto::LaunchRequest::Builder b) {
    auto c = b.initArmCrash();
    c.setStage("compute");
    c.setPoint("sampled");
    c.setCountdown(1);
  });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  run.turn_until([&] { return run.epoch(StageId::kCompute) == 2 && run.all_ready(); });
  EXPECT_EQ(run.life(StageId::kCompute).last_status.load(), static_cast<std::uint32_t>(SIGKILL));
  answer = run.call([](proto::LaunchRequest::Builder b) { b.initArmCrash().setStage("compute"); });
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.error().text.find("after_seq"), std::string::npos) << "lists the points";
}

TEST(Supervisor, FoldedStagesLiveAndDieTogether) {
  ToyRun run(toy_plan(), toy_topology(true));
  run.start_and_wait();
  for (StageId s : shm::kRunningStages) EXPECT_EQ(run.pid(s), run.pid(StageId::kGateway));
  run.commit(1);
  auto answer = run.call([](proto::LaunchRequest::Builder b) {
    auto c = b.initArmCrash();
    c.setStage("loader");
    c.setPoint("sampled");
  });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  run.turn_until([&] { return run.epoch(StageId::kRouter) == 2 && run.all_ready(); });
}

TEST(Supervisor, StatusCarriesReadOnlyDescriptors) {
  ToyRun run;
  run.start_and_wait();
  auto answer = run.call([](proto::LaunchRequest::Builder b) { b.setStatus(); });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  EXPECT_EQ(answer->names.size(), 8u);
  EXPECT_EQ(answer->descriptors.size(), 8u);
  EXPECT_EQ(answer->plan.model_name, "toy");
  EXPECT_EQ(answer->pids[shm::index(StageId::kLoader)], run.pid(StageId::kLoader));
  EXPECT_TRUE(shm::Mapping::map(answer->descriptor("life"), false).ok());
  EXPECT_FALSE(shm::Mapping::map(answer->descriptor("life"), true).ok());
}

TEST(Supervisor, DebugWaitStartsAStageStoppedBeforeItAttaches) {
  ToyRun run;
  run.start_and_wait();
  auto answer = run.call([](proto::LaunchRequest::Builder b) {
    auto d = b.initDebug();
    d.setStage("compute");
    d.setWait(true);
  });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  EXPECT_EQ(answer->pids[shm::index(StageId::kCompute)], run.pid(StageId::kCompute));
  run.turn_until([&] { return run.life(StageId::kCompute).stopped.load() == 1; });
  EXPECT_EQ(run.epoch(StageId::kCompute), 2u);
  EXPECT_EQ(run->regions().desk(StageId::kCompute)->attached_epoch.load(), 1u);
  run.kill(StageId::kCompute, SIGCONT);
  run.wait_all_ready();
  EXPECT_EQ(run->regions().desk(StageId::kCompute)->attached_epoch.load(), 2u);
}

TEST(Supervisor, DebugReplaceRunsACommandInTheStagesPlace) {
  ToyRun run;
  run.start_and_wait();
  const std::string command = std::string("env TOY=1 ") + TOY_STAGE;
  auto answer = run.call([&](proto::LaunchRequest::Builder b) {
    auto d = b.initDebug();
    d.setStage("router");
    d.setReplace(command);
  });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  run.wait_all_ready();
  EXPECT_EQ(run.epoch(StageId::kRouter), 2u);
  EXPECT_EQ(run->regions().desk(StageId::kRouter)->attached_epoch.load(), 2u);
  run.commit(4);
}

TEST(Supervisor, AMissingProgramIsNamed) {
  const PrivateRuntimeDir runtime;
  SupervisorOptions o;
  o.plan = toy_plan();
  o.topology = toy_topology();
  o.find_program = [](const std::string& name) { return "/nonexistent/" + name; };
  auto made = Supervisor::create(std::move(o));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().text.find("/nonexistent/toy"), std::string::npos);
}

}  // namespace
}  // namespace wisp::launch::test
