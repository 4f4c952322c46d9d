#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.hpp"

namespace wisp::crash {
namespace {

using shm::StageId;

/// A real gdb sits on the process for `seconds`, then detaches.
pid_t attach_gdb(std::uint32_t target, int seconds) {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string pid = std::to_string(target), sleep = "shell sleep " + std::to_string(seconds);
    ::freopen("/dev/null", "w", stdout);
    ::freopen("/dev/null", "w", stderr);
    ::execlp("gdb", "gdb", "-nx", "-batch", "-p", pid.c_str(), "-ex", sleep.c_str(), "-ex", "detach",
             nullptr);
    ::_exit(127);
  }
  return child;
}

TEST(Debugger, HoldsEachStageForTenSeconds) {
  TestRun run;
  const Seen golden = run.ask_and_wait("What is a bird?", 48);
  ASSERT_TRUE(golden.error.empty()) << golden.error;
  for (const StageId s : shm::kRunningStages) {
    SCOPED_TRACE(std::string(shm::name_of(s)));
    std::vector<std::uint32_t> epochs;
    for (const StageId e : shm::kRunningStages) epochs.push_back(run.epoch(e));
    run.gate(run.steps() + 5);
    auto ask = run.ask("What is a bird?", 48);
    run.await_gate();
    const pid_t gdb = attach_gdb(run.pid(s), 10);
    const shm::StageLife& life = run.state().life().stage[shm::index(s)];
    await("the launcher to see who traces", [&] { return life.traced_by.load() != 0; });
    await("the engine clock to stand still", [&] { return run.state().life().paused_since_ns.load() != 0; });
    run.open_gate();
    int status = 0;
    ASSERT_EQ(::waitpid(gdb, &status, 0), gdb);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "gdb is not there or could not attach";
    const Seen seen = ask->wait();
    EXPECT_EQ(seen.lines, golden.lines);
    EXPECT_EQ(seen.error, "");
    await("the clock to run again", [&] { return run.state().life().paused_since_ns.load() == 0; });
    for (std::size_t i = 0; i < epochs.size(); ++i) EXPECT_EQ(run.epoch(shm::kRunningStages[i]), epochs[i]);
    if (::testing::Test::HasFailure()) return;
  }
}

/// `wisp-launch restart STAGE` in mid-stream.
TEST(Debugger, RestartByHandWhileStreaming) {
  TestRun run;
  const Seen golden = run.ask_and_wait("What is a bird?", 48);
  for (const StageId s : shm::kRunningStages) {
    SCOPED_TRACE(std::string(shm::name_of(s)));
    run.gate(run.steps() + 5);
    auto ask = run.ask("What is a bird?", 48);
    run.await_gate();
    const std::uint32_t before = run.epoch(s);
    const std::string command = std::string(WISP_TEST_BIN) + "/wisp-launch restart " +
                                std::string(shm::name_of(s)) + " --run " + run.where().run_dir +
                                " > /dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0);
    run.await_return(s, before);
    run.open_gate();
    EXPECT_EQ(ask->wait().lines, golden.lines);
  }
}

}  // namespace
}  // namespace wisp::crash
