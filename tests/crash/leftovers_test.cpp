#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "harness.hpp"

namespace wisp::crash {
namespace {

using shm::StageId;
namespace fs = std::filesystem;

/// Processes other than this one that hold a memfd of a WISP run.
std::set<std::string> holders() {
  std::set<std::string> out;
  std::error_code error;
  for (const auto& p : fs::directory_iterator("/proc", error)) {
    const std::string pid = p.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(::getpid()))
      continue;
    for (const auto& f : fs::directory_iterator(p.path() / "fd", error)) {
      const std::string target = fs::read_symlink(f.path(), error).string();
      if (target.find("memfd:wisp") != std::string::npos) out.insert(pid);
    }
    error.clear();
  }
  return out;
}

bool gone(std::uint32_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) != 0;
}

void expect_nothing_left(const std::string& run_dir, const std::vector<std::uint32_t>& pids) {
  for (const std::uint32_t pid : pids) await("a process to end", [pid] { return gone(pid); });
  EXPECT_FALSE(fs::exists(run_dir + "/control") && holders().size() > 0);
  for (const std::uint32_t pid : pids) EXPECT_FALSE(holders().contains(std::to_string(pid)));
}

std::vector<std::uint32_t> pids_of(const TestRun& run) {
  std::vector<std::uint32_t> pids{run.launcher_pid()};
  for (const StageId s : shm::kRunningStages) pids.push_back(run.pid(s));
  return pids;
}

TEST(Leftovers, NothingAfterAStop) {
  std::string dir;
  std::vector<std::uint32_t> pids;
  {
    TestRun run;
    run.ask_and_wait("What is a bird?", 8);
    dir = run.where().run_dir;
    pids = pids_of(run);
  }
  expect_nothing_left(dir, pids);
  EXPECT_FALSE(fs::exists(dir)) << dir;
}

/// The launcher killed while a stage is stopped and another streams: nothing stays but a directory, and the
/// next launcher removes that.
TEST(Leftovers, NothingAfterTheLauncherWasKilled) {
  std::string dir;
  std::vector<std::uint32_t> pids;
  {
    TestRun run;
    dir = run.where().run_dir;
    pids = pids_of(run);
    run.signal(StageId::kCompute, SIGSTOP);
    await("the stop to be seen",
          [&] { return run.state().life().stage[shm::index(StageId::kCompute)].stopped.load() != 0; });
    ::kill(static_cast<pid_t>(pids[0]), SIGKILL);
    for (std::size_t i = 1; i < pids.size(); ++i)
      await("a stage to end with its launcher", [&] { return gone(pids[i]); });
  }
  expect_nothing_left(dir, pids);
  { TestRun next; }
  EXPECT_FALSE(fs::exists(dir)) << "the next launcher removes what a killed one left: " << dir;
}

}  // namespace
}  // namespace wisp::crash
