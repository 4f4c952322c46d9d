#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "harness.hpp"
#include "model/manifest.hpp"

/// KV in bf16 and naive prompts: whoever dies and whatever has to be computed again, the logits keep their
/// bits. Ids alone would not tell: the forms of latent attention differ in the last bits.
namespace wisp::crash {
namespace {

namespace fs = std::filesystem;
using shm::StageId;

constexpr std::uint32_t kTokens = 12;

/// The bytes of the only file in `folder`, which goes.
std::string take_only_file(const fs::path& folder) {
  std::string bytes;
  int files = 0;
  for (const auto& f : fs::directory_iterator(folder)) {
    std::ifstream in(f.path(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
    fs::remove(f.path());
    ++files;
  }
  EXPECT_EQ(files, 1);
  return bytes;
}

class KvForms : public ::testing::Test {
 protected:
  KvForms() {
    std::string pattern = (fs::temp_directory_path() / "wisp-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    settings_.model = model_of("oracle/deepseek_v3_published");
    const auto manifest = model::load_manifest(settings_.model);
    if (!manifest.ok()) throw std::runtime_error(manifest.error().text);
    vocab_ = manifest->spec.vocab;
    settings_.slots = 2 * manifest->spec.router.top_k;
    settings_.prompt_chunk = 100;  // a chunk goes across the end of the naive rows
    settings_.kv = "bf16";
    settings_.prefill = "naive";
    settings_.logits_dir = folder_;
  }
  ~KvForms() override { fs::remove_all(folder_); }

  std::vector<std::uint32_t> prompt(std::uint32_t n) const {
    std::vector<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < n; ++i) ids.push_back((i * 37 + i / 7) % vocab_);
    return ids;
  }
  /// Logits of an answer to a prompt of `n` ids during which `disturb` is called after `steps` steps.
  std::string logits(TestRun& run, std::uint32_t n, std::uint32_t steps,
                     const std::function<void()>& disturb) {
    run.gate(run.steps() + steps);
    auto ask = run.ask_ids(prompt(n), kTokens);
    run.await_gate();
    disturb();
    const Seen seen = ask->wait();
    EXPECT_EQ(seen.error, "");
    const std::string bytes = take_only_file(folder_);
    EXPECT_EQ(bytes.size(), std::size_t{kTokens} * vocab_ * sizeof(float));
    return bytes;
  }

  std::string folder_;
  std::uint32_t vocab_ = 0;
  RunSettings settings_;
};

TEST_F(KvForms, DeathsInAPromptAndInAnAnswer) {
  TestRun run(settings_);
  const auto nothing = [&] { run.open_gate(); };
  // 600 ids: rows below 512 are naive. 510: none is, also not when prompt and answer are computed anew as
  // 520.
  for (const std::uint32_t n : {600u, 510u}) {
    SCOPED_TRACE(n);
    const std::string golden = logits(run, n, 3, nothing);
    const std::uint32_t in_answer = n / 100 + 6;
    for (const std::uint32_t steps : {3u, in_answer}) {
      for (const StageId s : {StageId::kCompute, StageId::kRouter}) {
        SCOPED_TRACE(std::string(shm::name_of(s)) + " after " + std::to_string(steps) + " steps");
        EXPECT_TRUE(logits(run, n, steps, [&] {
                      const std::uint32_t before = run.epoch(s);
                      run.arm(s, s == StageId::kCompute ? "kv_row_half" : "commit_before_head");
                      run.open_gate();
                      run.await_return(s, before);
                    }) == golden);
      }
    }
    // A death after which KV has to be computed again from the journal.
    const std::uint32_t resets = run.resets();
    EXPECT_TRUE(logits(run, n, in_answer, [&] {
                  run.signal(StageId::kCompute, SIGSEGV);
                  await("the reset", [&] { return run.resets() > resets; });
                  run.open_gate();
                }) == golden);
    for (const StageId s : shm::kRunningStages) run.await_return(s, 1);
  }
}

}  // namespace
}  // namespace wisp::crash
