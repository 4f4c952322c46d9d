#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "harness.hpp"

namespace wisp::crash {
namespace {

using shm::StageId;
namespace fs = std::filesystem;

/// Inodes of the WISP regions that `pid` has open: they name one run's memory, whoever else runs on this
/// machine.
std::set<ino_t> regions_of(std::uint32_t pid) {
  std::set<ino_t> out;
  std::error_code error;
  for (const auto& f : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    struct stat st {};
    if (fs::read_symlink(f.path(), error).string().find("memfd:wisp") == std::string::npos) continue;
    if (::stat(f.path().c_str(), &st) == 0) out.insert(st.st_ino);
  }
  return out;
}

/// Processes other than this one that hold any of these regions.
std::vector<std::string> holders(const std::set<ino_t>& regions) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& p : fs::directory_iterator("/proc", error)) {
    const std::string pid = p.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(::getpid()))
      continue;
    for (const ino_t held : regions_of(static_cast<std::uint32_t>(std::stoul(pid))))
      if (regions.contains(held)) {
        out.push_back(pid);
        break;
      }
  }
  return out;
}

bool gone(std::uint32_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) != 0;
}

struct Traces {
  std::string dir;
  std::vector<std::uint32_t> pids;  ///< the launcher's first
  std::set<ino_t> regions;
};

Traces traces_of(const TestRun& run) {
  Traces t{run.where().run_dir, {run.launcher_pid()}, {}};
  for (const StageId s : shm::kRunningStages) t.pids.push_back(run.pid(s));
  t.regions = regions_of(t.pids.front());
  EXPECT_GE(t.regions.size(), 9u);
  return t;
}

void expect_nothing_left(const Traces& t) {
  for (const std::uint32_t pid : t.pids) await("a process to end", [pid] { return gone(pid); });
  await("the last descriptor of the run's memory to be closed", [&] { return holders(t.regions).empty(); });
}

TEST(Leftovers, NothingAfterAStop) {
  Traces t;
  {
    TestRun run;
    run.ask_and_wait("What is a bird?", 8);
    t = traces_of(run);
  }
  expect_nothing_left(t);
  EXPECT_FALSE(fs::exists(t.dir)) << t.dir;
}

/// The launcher killed while a stage is stopped and another streams: nothing stays but a directory, and the
/// next launcher removes that.
TEST(Leftovers, NothingAfterTheLauncherWasKilled) {
  Traces t;
  {
    TestRun run;
    t = traces_of(run);
    run.signal(StageId::kCompute, SIGSTOP);
    await("the stop to be seen",
          [&] { return run.state().life().stage[shm::index(StageId::kCompute)].stopped.load() != 0; });
    ::kill(static_cast<pid_t>(t.pids.front()), SIGKILL);
    for (std::size_t i = 1; i < t.pids.size(); ++i)
      await("a stage to end with its launcher", [&] { return gone(t.pids[i]); });
  }
  // The test's own mappings are gone with `run`.
  expect_nothing_left(t);
  { TestRun next; }
  EXPECT_FALSE(fs::exists(t.dir)) << "the next launcher removes what a killed one left: " << t.dir;
}

}  // namespace
}  // namespace wisp::crash
