#include <gtest/gtest.h>
#include <signal.h>

#include "harness.hpp"

namespace wisp::crash {
namespace {

using shm::StageId;

/// With drafts, and plain.
class DirtyDeathInMidStream : public ::testing::TestWithParam<bool> {};

/// SIGSEGV in each stage: all memory but the journal is made fresh, and the stream goes on with the same
/// bytes.
TEST_P(DirtyDeathInMidStream, ResetCarriesTheJournalOver) {
  const bool drafts = GetParam();
  const auto kind = drafts ? TestRun::Kind::kTold : TestRun::Kind::kFull;
  Seen golden;
  {
    TestRun plain;
    golden = plain.ask_and_wait("What is a river?", 48, kind);
    ASSERT_TRUE(golden.error.empty()) << golden.error;
  }
  TestRun run(drafts ? with_drafts() : RunSettings{});
  std::uint32_t resets = 0;
  for (const StageId s : shm::kRunningStages) {
    SCOPED_TRACE(std::string(shm::name_of(s)));
    const std::uint64_t drafts_before = run.draft_steps();
    run.gate(run.steps() + 6);
    auto ask = run.ask("What is a river?", 48, kind);
    run.await_gate();
    EXPECT_EQ(run.draft_steps() > drafts_before, drafts);
    const std::uint32_t before = run.epoch(s);
    run.gate(0);  // steps count from 0 again
    run.signal(s, SIGSEGV);
    await("the reset", [&] { return run.resets() > resets; });
    ++resets;
    run.await_return(s, before);
    // The new speculator too, so that it is asked in what is left of the answer.
    if (drafts) await("the speculator", [&] { return run.ready(StageId::kSpeculator); });
    run.open_gate();
    const Seen seen = ask->wait();
    EXPECT_EQ(seen.lines, golden.lines);
    EXPECT_EQ(seen.error, "");
    EXPECT_EQ(run.draft_steps() > 0, drafts) << "since the reset";
    for (const StageId other : shm::kRunningStages) run.await_return(other, 1);
    if (::testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, DirtyDeathInMidStream, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "drafts" : "plain"; });

/// A stage that dies again and again without progress is given up, and a client is told why.
TEST(DirtyDeath, GivenUpAfterDeathsWithoutProgress) {
  TestRun run;
  run.gate(run.steps() + 1);
  auto ask = run.ask("What is a river?", 48);
  run.await_gate();
  const auto life = [&]() -> const shm::StageLife& {
    return run.state().life().stage[shm::index(StageId::kCompute)];
  };
  const auto given_up = [&] {
    return life().state.load() == static_cast<std::uint32_t>(shm::StageState::kGivenUp);
  };
  while (!given_up()) {
    const std::uint32_t before = run.epoch(StageId::kCompute);
    run.signal(StageId::kCompute, SIGKILL);
    await("the next life or the end", [&] {
      return given_up() || (run.epoch(StageId::kCompute) > before && run.ready(StageId::kCompute));
    });
  }
  EXPECT_GE(run.epoch(StageId::kCompute), 5u);
  const Seen seen = ask->wait();
  const bool told =
      !seen.error.empty() || (!seen.lines.empty() && seen.lines.back().find("error") != std::string::npos);
  EXPECT_TRUE(told) << "the client was left waiting";
}

}  // namespace
}  // namespace wisp::crash
