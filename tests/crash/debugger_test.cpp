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

constexpr const char* kQuestion = "What is a bird?";
constexpr std::uint32_t kTokens = 48;

/// A pipeline without drafts, and one that tries some in each step.
struct Pipeline {
  bool drafts;
  int seconds;  ///< that gdb stays
};

class Debugger : public ::testing::TestWithParam<Pipeline> {
 protected:
  /// What a pipeline without drafts answers, undisturbed.
  void SetUp() override {
    TestRun plain;
    golden_ = plain.ask_and_wait(kQuestion, kTokens, TestRun::Kind::kFull);
    ASSERT_TRUE(golden_.error.empty()) << golden_.error;
  }
  static RunSettings settings() { return GetParam().drafts ? with_drafts() : RunSettings{}; }

  /// A stream that stands at the gate, five steps on, of which the last tried drafts.
  std::unique_ptr<TestRun::Ask> ask_to_the_gate(TestRun& run) {
    const std::uint64_t before = run.draft_steps();
    run.gate(run.steps() + 5);
    auto ask = run.ask(kQuestion, kTokens, TestRun::Kind::kFull);
    run.await_gate();
    EXPECT_EQ(run.draft_steps() > before, GetParam().drafts);
    at_gate_ = run.draft_steps();
    return ask;
  }
  /// The stream has its bytes, and drafts were tried since the gate.
  void expect_golden(TestRun& run, const Seen& seen) const {
    EXPECT_EQ(seen.lines, golden_.lines);
    EXPECT_EQ(seen.error, "");
    EXPECT_EQ(run.draft_steps() > at_gate_, GetParam().drafts);
  }
  /// Of a speculator that was held, or is new: what was at hand before has gone with an answer.
  void expect_drafts_again(TestRun& run) {
    at_gate_ = run.draft_steps();
    expect_golden(run, run.ask_and_wait(kQuestion, kTokens, TestRun::Kind::kFull));
  }

  Seen golden_;
  std::uint64_t at_gate_ = 0;
};

TEST_P(Debugger, HoldsEachStageForSeconds) {
  TestRun run(settings());
  for (const StageId s : shm::kRunningStages) {
    SCOPED_TRACE(std::string(shm::name_of(s)));
    std::vector<std::uint32_t> epochs;
    for (const StageId e : shm::kRunningStages) epochs.push_back(run.epoch(e));
    auto ask = ask_to_the_gate(run);
    const pid_t gdb = attach_gdb(run.pid(s), GetParam().seconds);
    const shm::StageLife& life = run.state().life().stage[shm::index(s)];
    await("the launcher to see who traces", [&] { return life.traced_by.load() != 0; });
    await("the engine clock to stand still", [&] { return run.state().life().paused_since_ns.load() != 0; });
    run.open_gate();
    int status = 0;
    ASSERT_EQ(::waitpid(gdb, &status, 0), gdb);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "gdb is not there or could not attach";
    const Seen seen = ask->wait();
    await("the clock to run again", [&] { return run.state().life().paused_since_ns.load() == 0; });
    expect_golden(run, seen);
    if (s == StageId::kSpeculator) expect_drafts_again(run);
    for (std::size_t i = 0; i < epochs.size(); ++i) EXPECT_EQ(run.epoch(shm::kRunningStages[i]), epochs[i]);
    if (::testing::Test::HasFailure()) return;
  }
}

/// SIGSTOP and SIGCONT in mid-stream.
TEST_P(Debugger, StopsEachStageForAWhile) {
  TestRun run(settings());
  for (const StageId s : shm::kRunningStages) {
    SCOPED_TRACE(std::string(shm::name_of(s)));
    const std::uint32_t epoch = run.epoch(s);
    auto ask = ask_to_the_gate(run);
    const shm::StageLife& life = run.state().life().stage[shm::index(s)];
    run.signal(s, SIGSTOP);
    await("the stop to be seen", [&] { return life.stopped.load() != 0; });
    const std::uint64_t steps = run.steps();
    run.open_gate();
    if (s == StageId::kSpeculator) {
      // Needed by no answer: the stream ends beside it, in plain steps once the drafts at hand are used up.
      const std::uint64_t plain = run.counter(StageId::kRouter, stats::Counter::kPlainSteps);
      const Seen seen = ask->wait();
      EXPECT_EQ(run.counter(StageId::kRouter, stats::Counter::kPlainSteps) > plain, GetParam().drafts);
      EXPECT_NE(life.stopped.load(), 0u);
      run.signal(s, SIGCONT);
      await("the stop to be over", [&] { return life.stopped.load() == 0; });
      expect_golden(run, seen);
      expect_drafts_again(run);
    } else {
      // A step that stands still in it; the router makes none itself.
      if (s != StageId::kRouter) await("a step", [&] { return run.steps() > steps; });
      run.signal(s, SIGCONT);
      await("the stop to be over", [&] { return life.stopped.load() == 0; });
      expect_golden(run, ask->wait());
    }
    EXPECT_EQ(run.epoch(s), epoch);
    if (::testing::Test::HasFailure()) return;
  }
}

/// `wisp-launch restart STAGE` in mid-stream.
TEST_P(Debugger, RestartByHandWhileStreaming) {
  TestRun run(settings());
  for (const StageId s : shm::kRunningStages) {
    SCOPED_TRACE(std::string(shm::name_of(s)));
    auto ask = ask_to_the_gate(run);
    const std::uint32_t before = run.epoch(s);
    const std::string command = std::string(WISP_TEST_BIN) + "/wisp-launch restart " +
                                std::string(shm::name_of(s)) + " --run " + run.where().run_dir +
                                " > /dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0);
    run.await_return(s, before);
    run.open_gate();
    expect_golden(run, ask->wait());
    if (s == StageId::kSpeculator) expect_drafts_again(run);
  }
}
INSTANTIATE_TEST_SUITE_P(Pipelines, Debugger, ::testing::Values(Pipeline{false, 10}, Pipeline{true, 2}),
                         [](const auto& i) { return i.param.drafts ? "drafts" : "plain"; });

}  // namespace
}  // namespace wisp::crash
