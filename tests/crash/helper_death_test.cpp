#include <gtest/gtest.h>
#include <signal.h>

#include "harness.hpp"
#include "tests/template_helper_pid.hpp"

/// The template helper is no stage: its gateway starts it again, and nobody's answer shows that it died.
namespace wisp::crash {
namespace {

using shm::StageId;

constexpr const char* kQuestion = "What is a dog?";
constexpr std::uint32_t kTokens = 48;

pid_t helper_of(const TestRun& run) {
  pid_t pid = -1;
  await("a template helper", [&] {
    pid = test::template_helper_of(static_cast<pid_t>(run.pid(StageId::kGateway)));
    return pid > 0;
  });
  return pid;
}

class HelperDeath : public ::testing::Test {
 protected:
  HelperDeath() : run_(settings()), golden_(run_.ask_and_wait(kQuestion, kTokens)) {
    EXPECT_EQ(golden_.error, "");
    EXPECT_GT(golden_.lines.size(), 20u);
  }
  static RunSettings settings() {
    RunSettings s;
    s.prompt_chunk = 4;  // so that the gate after one step lies in the middle of the prompt
    return s;
  }
  std::uint64_t restarts() const { return run_.counter(StageId::kGateway, stats::Counter::kHelperRestarts); }
  std::uint64_t requests() const { return run_.counter(StageId::kGateway, stats::Counter::kHttpRequests); }
  /// The answer to a further question, which needs a helper, and that this was the `n`th one started again.
  void expect_served(std::uint64_t n) {
    EXPECT_EQ(run_.ask_and_wait(kQuestion, kTokens).lines, golden_.lines);
    EXPECT_EQ(restarts(), n);
    EXPECT_EQ(run_.epoch(StageId::kGateway), 1u) << "the gateway died with its helper";
  }

  TestRun run_;
  Seen golden_;
};

TEST_F(HelperDeath, InPrefillAndInMidStream) {
  std::uint64_t died = 0;
  for (const std::uint64_t steps : {1u, 6u}) {
    SCOPED_TRACE(steps == 1 ? "in prefill" : "in mid-stream");
    run_.gate(run_.steps() + steps);
    auto ask = run_.ask(kQuestion, kTokens);
    run_.await_gate();
    ASSERT_EQ(::kill(helper_of(run_), SIGKILL), 0);
    run_.open_gate();
    const Seen seen = ask->wait();
    EXPECT_EQ(seen.lines, golden_.lines);
    EXPECT_EQ(seen.resumes, 0u);
    expect_served(++died);
  }
}

/// It stands still with one request in its hands while another streams, then dies: the stream goes on, and
/// the request is answered by the next helper.
TEST_F(HelperDeath, UnderARequest) {
  run_.gate(run_.steps() + 6);
  auto streaming = run_.ask(kQuestion, kTokens);
  run_.await_gate();
  const pid_t helper = helper_of(run_);
  ASSERT_EQ(::kill(helper, SIGSTOP), 0);
  const std::uint64_t before = requests();
  auto waiting = run_.ask(kQuestion, kTokens);
  await("the gateway to take the second request", [&] { return requests() > before; });
  run_.open_gate();
  EXPECT_EQ(streaming->wait().lines, golden_.lines);
  EXPECT_FALSE(waiting->done());
  ASSERT_EQ(::kill(helper, SIGKILL), 0);
  EXPECT_EQ(waiting->wait().lines, golden_.lines);
  EXPECT_EQ(restarts(), 1u);
  expect_served(1);
}

/// The gateway dies while its helper stands still with a request in its hands: the helper goes with it, and
/// the client asks the next gateway.
TEST_F(HelperDeath, WithItsGateway) {
  const pid_t helper = helper_of(run_);
  ASSERT_EQ(::kill(helper, SIGSTOP), 0);
  const std::uint64_t before = requests();
  auto ask = run_.ask(kQuestion, kTokens);
  await("the gateway to take the request", [&] { return requests() > before; });
  run_.signal(StageId::kGateway, SIGKILL);
  run_.await_return(StageId::kGateway, 1);
  EXPECT_EQ(ask->wait().lines, golden_.lines);
  await("the helper to end with its gateway", [&] { return ::kill(helper, 0) != 0; });
}

}  // namespace
}  // namespace wisp::crash
