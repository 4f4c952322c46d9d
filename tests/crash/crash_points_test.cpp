#include <gtest/gtest.h>
#include <signal.h>

#include "harness.hpp"
#include "model/manifest.hpp"

/// Every stage dies once at every crash point it has, in mid-stream and in prefill, and the client sees the
/// bytes of an undisturbed run.
namespace wisp::crash {
namespace {

using shm::StageId;

struct Point {
  StageId stage;
  const char* name;
};
const std::vector<Point>& points() {
  static const std::vector<Point> all{{StageId::kGateway, "after_fill"},
                                      {StageId::kGateway, "after_seq"},
                                      {StageId::kGateway, "before_ring"},
                                      {StageId::kGateway, "after_effect_before_head"},
                                      {StageId::kGateway, "sse_half"},
                                      {StageId::kRouter, "after_fill"},
                                      {StageId::kRouter, "after_seq"},
                                      {StageId::kRouter, "before_ring"},
                                      {StageId::kRouter, "after_effect_before_head"},
                                      {StageId::kRouter, "token_before_commit"},
                                      {StageId::kRouter, "commit_before_head"},
                                      {StageId::kLoader, "after_fill"},
                                      {StageId::kLoader, "after_seq"},
                                      {StageId::kLoader, "before_ring"},
                                      {StageId::kLoader, "after_effect_before_head"},
                                      {StageId::kLoader, "evicting_stored"},
                                      {StageId::kLoader, "filling_stored"},
                                      {StageId::kLoader, "cqe_before_ready"},
                                      {StageId::kLoader, "ready_before_publish"},
                                      {StageId::kCompute, "after_fill"},
                                      {StageId::kCompute, "after_seq"},
                                      {StageId::kCompute, "before_ring"},
                                      {StageId::kCompute, "after_effect_before_head"},
                                      {StageId::kCompute, "lease_written"},
                                      {StageId::kCompute, "kv_row_half"},
                                      {StageId::kCompute, "sampled"}};
  return all;
}

/// Those and the speculator's, which does nothing where nothing is guessed.
std::vector<Point> points_with_drafts() {
  std::vector<Point> all = points();
  for (const char* name : {"after_fill", "after_seq", "before_ring", "after_effect_before_head",
                           "question_taken", "drafts_unsent"})
    all.push_back({StageId::kSpeculator, name});
  return all;
}

/// A gateway's own messages are few: what it says first is the submission.
bool struck_at_submission(const Point& p) {
  return p.stage == StageId::kGateway && std::string(p.name) != "sse_half" &&
         std::string(p.name) != "after_effect_before_head";
}

constexpr const char* kQuestion = "What is a dog?";
constexpr std::uint32_t kTokens = 48;

class CrashPoints : public ::testing::TestWithParam<const char*> {};

/// One pipeline; each point is armed at the gate and struck by the steps after it.
TEST_P(CrashPoints, EachStageDiesAtEachOfItsPoints) {
  RunSettings settings;
  settings.io = GetParam();
  settings.prompt_chunk = 4;  // so that the gate after one step lies in the middle of the prompt
  TestRun run(settings);
  const Seen golden = run.ask_and_wait(kQuestion, kTokens);
  ASSERT_TRUE(golden.error.empty()) << golden.error;
  ASSERT_GT(golden.lines.size(), 20u);
  for (const bool prefill : {false, true}) {
    for (const Point& p : points()) {
      const std::string where =
          std::string(shm::name_of(p.stage)) + " at " + p.name + (prefill ? " in prefill" : " in mid-stream");
      SCOPED_TRACE(where);
      run.gate(run.steps() + (prefill ? 1 : 6));
      const bool at_submit = struck_at_submission(p);
      const std::uint32_t before = run.epoch(p.stage);
      if (at_submit) run.arm(p.stage, p.name);
      auto ask = run.ask(kQuestion, kTokens);
      if (!at_submit) {
        run.await_gate();
        run.arm(p.stage, p.name);
      }
      run.open_gate();
      const Seen seen = ask->wait();
      EXPECT_EQ(seen.lines, golden.lines);
      EXPECT_EQ(seen.error, "");
      run.await_return(p.stage, before);
      EXPECT_EQ(run.epoch(p.stage), before + 1) << "died other than once";
      std::printf("  %s: ok\n", where.c_str());
      std::fflush(stdout);
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_EQ(run.resets(), 0u);
}
INSTANTIATE_TEST_SUITE_P(Backends, CrashPoints, ::testing::Values("auto", "ghost"),
                         [](const auto& i) { return std::string(i.param); });

/// The same in mid-stream while drafts are tried: before the strike, in the step that is struck, and after
/// it.
TEST(CrashPointsWithDrafts, EachStageDiesAtEachOfItsPoints) {
  const TestRun::Kind kinds[] = {TestRun::Kind::kFull, TestRun::Kind::kTold};
  Seen goldens[2];
  {
    TestRun run;
    for (int k = 0; k < 2; ++k) {
      goldens[k] = run.ask_and_wait(kQuestion, kTokens, kinds[k]);
      ASSERT_TRUE(goldens[k].error.empty()) << goldens[k].error;
    }
  }
  TestRun run(with_drafts());
  int turn = 0;
  for (const Point& p : points_with_drafts()) {
    const Seen& golden = goldens[++turn % 2];
    SCOPED_TRACE(std::string(shm::name_of(p.stage)) + " at " + p.name);
    run.gate(run.steps() + 4);
    const std::uint32_t epoch = run.epoch(p.stage);
    const std::uint64_t at_first = run.draft_steps();
    if (struck_at_submission(p)) run.arm(p.stage, p.name);
    auto ask = run.ask(kQuestion, kTokens, kinds[turn % 2]);
    run.await_gate();
    // What is tried next is at hand: who waits at the gate has waited for drafts before.
    const std::uint64_t before = run.draft_steps();
    EXPECT_GT(before, at_first) << "no drafts were tried before the strike";
    if (!struck_at_submission(p)) run.arm(p.stage, p.name);
    run.gate(run.steps() + 2);
    run.await_return(p.stage, epoch);
    run.await_gate();
    EXPECT_EQ(run.epoch(p.stage), epoch + 1) << "died other than once";
    // A router that dies forgets what it was about to count.
    const std::uint64_t after = run.draft_steps();
    if (p.stage != StageId::kRouter) {
      EXPECT_GT(after, before) << "the step that was struck had no drafts";
    }
    run.open_gate();
    const Seen seen = ask->wait();
    EXPECT_EQ(seen.lines, golden.lines);
    EXPECT_EQ(seen.error, "");
    EXPECT_GT(run.draft_steps(), after) << "no drafts were tried after the strike";
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(run.resets(), 0u);
}

/// The same in mid-stream for other kinds of attention: a window with grouped queries, latents, and latents
/// of which an indexer picks some. Their KV rows are other bytes, and rows written twice have to be the same.
class CrashPointsOfFamilies : public ::testing::TestWithParam<const char*> {};

TEST_P(CrashPointsOfFamilies, SameBytes) {
  RunSettings settings;
  settings.model = model_of(std::string("oracle/") + GetParam());
  const auto manifest = model::load_manifest(settings.model);
  ASSERT_TRUE(manifest.ok());
  settings.slots = 2 * manifest->spec.router.top_k;
  settings.prompt_chunk = 7;
  std::vector<std::uint32_t> prompt;
  for (std::uint32_t i = 0; i < 40; ++i) prompt.push_back((i * 37 + 11) % manifest->spec.vocab);
  TestRun run(settings);
  const Seen golden = run.ask_ids(prompt, 24)->wait();
  ASSERT_TRUE(golden.error.empty()) << golden.error;
  ASSERT_GT(golden.lines.size(), 20u);
  for (const Point& p : points()) {
    if (p.stage == StageId::kGateway) continue;  // it knows nothing of attention
    SCOPED_TRACE(std::string(shm::name_of(p.stage)) + " at " + p.name);
    run.gate(run.steps() + 12);
    const std::uint32_t before = run.epoch(p.stage);
    auto ask = run.ask_ids(prompt, 24);
    run.await_gate();
    run.arm(p.stage, p.name);
    run.open_gate();
    const Seen seen = ask->wait();
    EXPECT_EQ(seen.lines, golden.lines);
    EXPECT_EQ(seen.error, "");
    run.await_return(p.stage, before);
    if (::testing::Test::HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Attention, CrashPointsOfFamilies,
                         ::testing::Values("mixtral_window", "deepseek_v3_published",
                                           "glm_moe_dsa_published"),
                         [](const auto& i) { return std::string(i.param); });

/// Tokens of the request that is under way, as the journal has them.
std::uint32_t committed(const TestRun& run) {
  const shm::Journal& j = run.state().journal();
  for (std::uint32_t i = 0; i < j.records; ++i) {
    const auto word = shm::CommitWord::unpack(j.record(i)->commit.load());
    if (j.record(i)->request.load() != 0 && word.finish == shm::Finish::kNone) return word.length;
  }
  return 0;
}

/// One step behind a closed gate, and a death in it. The router may not publish another: the token comes from
/// that step or from its result, and neither may be lost with the process that took it.
TEST(CrashPointsAtTheGate, AStepOrResultThatWasTakenIsNotLost) {
  TestRun run;
  const Seen golden = run.ask_and_wait(kQuestion, kTokens);
  ASSERT_TRUE(golden.error.empty()) << golden.error;
  for (const Point& p : points()) {
    if (p.stage == StageId::kGateway) continue;
    SCOPED_TRACE(std::string(shm::name_of(p.stage)) + " at " + p.name);
    run.gate(run.steps() + 6);
    auto ask = run.ask(kQuestion, kTokens);
    run.await_gate();
    const std::uint32_t tokens = committed(run), before = run.epoch(p.stage);
    ASSERT_GT(tokens, 0u);
    run.arm(p.stage, p.name);
    run.gate(run.steps() + 1);
    run.await_return(p.stage, before);
    run.await_gate();
    EXPECT_EQ(committed(run), tokens + 1) << "the step is over and its token is not there";
    run.open_gate();
    EXPECT_EQ(ask->wait().lines, golden.lines);
    if (::testing::Test::HasFailure()) return;
  }
}

/// A loader dies while it fills, and what it asked the drive for lands only after its successor has served
/// the step. Nothing is evicted here, so a slot that was used before the tombstone is read again, as garbage.
TEST(CrashPointsTombstone, LateReadsHitNoSlotInUse) {
  Seen golden;
  {
    TestRun run;
    golden = run.ask_and_wait(kQuestion, kTokens);
    ASSERT_TRUE(golden.error.empty()) << golden.error;
  }
  RunSettings settings;
  settings.slots = 256;
  settings.io = "ghost";
  settings.prompt_chunk = 4;  // so that the first steps find few experts there
  TestRun run(settings);
  run.gate(run.steps() + 1);
  auto ask = run.ask(kQuestion, kTokens);
  run.await_gate();
  const std::uint32_t before = run.epoch(StageId::kLoader);
  run.arm(StageId::kLoader, "filling_stored", 3);
  run.gate(run.steps() + 1);
  run.await_return(StageId::kLoader, before);
  run.await_gate();
  await("the tombstone of the dead loader", [&] { return run.state().life().epoch_drained(before); });
  run.open_gate();
  EXPECT_EQ(ask->wait().lines, golden.lines);
}

/// As few slots as a plan allows: whoever held a lease while waiting would wait for itself.
TEST(CrashPointsFewestSlots, SameBytes) {
  const auto manifest = model::load_manifest(bundled_model());
  ASSERT_TRUE(manifest.ok());
  Seen golden;
  {
    TestRun run;
    golden = run.ask_and_wait(kQuestion, kTokens);
    ASSERT_TRUE(golden.error.empty()) << golden.error;
  }
  RunSettings settings;
  settings.slots = 2 * manifest->spec.router.top_k;
  settings.io = "ghost";
  TestRun run(settings);
  EXPECT_EQ(run.ask_and_wait(kQuestion, kTokens).lines, golden.lines);
  for (const StageId s : {StageId::kLoader, StageId::kCompute}) {
    SCOPED_TRACE(std::string(shm::name_of(s)));
    const std::uint32_t before = run.epoch(s);
    run.gate(run.steps() + 5);
    auto ask = run.ask(kQuestion, kTokens);
    run.await_gate();
    run.arm(s, s == StageId::kLoader ? "filling_stored" : "lease_written");
    run.open_gate();
    run.await_return(s, before);
    EXPECT_EQ(ask->wait().lines, golden.lines);
  }
}

/// Two stages at once, and a loader twice within one drain; with drafts, and plain.
class CrashPointsTogether : public ::testing::TestWithParam<bool> {};

TEST_P(CrashPointsTogether, TwoStagesAndALoaderTwice) {
  RunSettings settings;
  settings.io = "ghost";
  Seen golden;
  {
    TestRun plain(settings);
    golden = plain.ask_and_wait(kQuestion, kTokens);
    ASSERT_TRUE(golden.error.empty()) << golden.error;
  }
  const bool drafts = GetParam();
  TestRun run(drafts ? with_drafts(settings) : settings);
  const std::size_t stages = drafts ? shm::kRunningStages.size() : 4;
  for (std::uint32_t a = 0; a < stages; ++a) {
    for (std::uint32_t b = a; b < stages; ++b) {
      const auto first = static_cast<StageId>(a), second = static_cast<StageId>(b);
      SCOPED_TRACE(std::string(shm::name_of(first)) + " and " + std::string(shm::name_of(second)));
      run.gate(run.steps() + 5);
      auto ask = run.ask(kQuestion, kTokens);
      run.await_gate();
      const std::uint32_t before_first = run.epoch(first), before_second = run.epoch(second);
      // In the middle of a fill where the loader is meant: its slots are left FILLING.
      if (first == StageId::kLoader)
        run.arm(first, "filling_stored");
      else
        run.signal(first, SIGKILL);
      run.open_gate();
      if (a != b) run.signal(second, SIGKILL);
      run.await_return(first, before_first);
      run.await_return(second, before_second);
      if (a == b) {
        // Again, while the first death's reads may still land.
        run.signal(second, SIGKILL);
        run.await_return(second, before_second + 1);
      }
      EXPECT_EQ(ask->wait().lines, golden.lines);
      if (::testing::Test::HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Pipelines, CrashPointsTogether, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "drafts" : "plain"; });

}  // namespace
}  // namespace wisp::crash
