#include <capnp/serialize.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "launch/spawn.hpp"
#include "service/live_runs.hpp"
#include "toy_run.hpp"

/// The real program wisp-launch over toy stages.
namespace wisp::launch::test {
namespace {

constexpr int kPlanFd = 20;
constexpr int kLifelineFd = 21;
constexpr int kAnnounceFd = 22;

class Launcher {
 public:
  Launcher() {
    // Toys under the names that topology `full` asks for.
    const std::string programs = runtime.path() + "/programs";
    std::filesystem::create_directory(programs);
    for (const char* name : {"wisp-gateway", "wisp-router", "wisp-loader", "wisp-compute", "wisp-speculator"})
      std::filesystem::create_symlink(TOY_STAGE, programs + "/" + name);
    Pipe lifeline = std::move(*make_pipe());
    Pipe announce = std::move(*make_pipe());
    Fd plan = plan_file();
    SpawnRequest request;
    request.path = WISP_LAUNCH;
    request.arguments = {"run", "--plan-fd",    "20",       "--lifeline-fd", "21",    "--announce-fd",
                         "22",  "--topologies", TOPOLOGIES, "--programs",    programs};
    request.grants = {
        {plan.get(), kPlanFd}, {lifeline.read.get(), kLifelineFd}, {announce.write.get(), kAnnounceFd}};
    child = std::move(*spawn(request));
    lifeline_end = std::move(lifeline.write);
    events = std::move(announce.read);
  }
  ~Launcher() {
    if (child.alive()) {
      child.signal(SIGKILL);
      reap(child);
    }
  }

  /// The next line of events; empty at their end.
  std::string line() {
    for (;;) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string out = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return out;
      }
      char bytes[512];
      const ssize_t n = ::read(events.get(), bytes, sizeof bytes);
      if (n <= 0) return {};
      buffer_.append(bytes, static_cast<std::size_t>(n));
    }
  }
  /// Waits for the run to be ready; its directory.
  std::string run_dir() { return nlohmann::json::parse(line()).at("run_dir"); }

  PrivateRuntimeDir runtime;
  Child child;
  Fd lifeline_end;
  Fd events;

 private:
  static Fd plan_file() {
    Fd fd(::memfd_create("plan", MFD_CLOEXEC));
    capnp::MallocMessageBuilder message;
    proto::write_plan(toy_plan(), message.initRoot<proto::RunPlan>());
    const auto words = capnp::messageToFlatArray(message);
    EXPECT_GT(::write(fd.get(), words.begin(), words.asBytes().size()), 0);
    ::lseek(fd.get(), 0, SEEK_SET);
    return fd;
  }

  std::string buffer_;
};

std::vector<Fd> stages_of(const std::string& run_dir) {
  auto client = Client::connect(run_dir);
  auto answer = client->call([](proto::LaunchRequest::Builder b) { b.setStatus(); });
  EXPECT_TRUE(answer.ok());
  std::vector<Fd> out;
  for (std::uint32_t pid : answer->pids)
    if (pid != 0) out.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return out;
}

/// Blocks until the process is gone; CTest is the watchdog.
void wait_for_end(const Fd& pidfd) {
  pollfd p{pidfd.get(), POLLIN, 0};
  while (::poll(&p, 1, -1) < 0) {
  }
}

TEST(Launcher, SaysWhereItIsAndStopsOnRequestLeavingNothing) {
  Launcher launcher;
  const std::string dir = launcher.run_dir();
  auto client = Client::connect(dir);
  ASSERT_TRUE(client.ok()) << client.error().text;
  ASSERT_TRUE(client->call([](proto::LaunchRequest::Builder b) { b.setStop(); }).ok());
  client->wait_for_end();
  wait_for_end(launcher.child.pidfd);
  EXPECT_EQ(reap(launcher.child), 0);
  EXPECT_FALSE(std::filesystem::exists(dir));
}

TEST(Launcher, TellsDeathsAsLinesOfJson) {
  Launcher launcher;
  const std::string dir = launcher.run_dir();
  auto client = Client::connect(dir);
  auto status = client->call([](proto::LaunchRequest::Builder b) { b.setStatus(); });
  ASSERT_TRUE(status.ok());
  ::kill(static_cast<pid_t>(status->pids[shm::index(shm::StageId::kCompute)]), SIGKILL);
  auto died = nlohmann::json::parse(launcher.line());
  EXPECT_EQ(died.at("event"), "stage_died");
  EXPECT_EQ(died.at("stage"), "compute");
  EXPECT_EQ(died.at("signal"), 9);
  EXPECT_EQ(died.at("restarting"), true);
  auto ready = nlohmann::json::parse(launcher.line());
  EXPECT_EQ(ready.at("event"), "stage_ready");
  EXPECT_EQ(ready.at("stage"), "compute");
}

TEST(Launcher, EndsWithItsParent) {
  Launcher launcher;
  const std::string dir = launcher.run_dir();
  const auto stages = stages_of(dir);
  ASSERT_EQ(stages.size(), 5u);
  launcher.lifeline_end.reset();
  for (const Fd& s : stages) wait_for_end(s);
  wait_for_end(launcher.child.pidfd);
  EXPECT_EQ(reap(launcher.child), 0);
  EXPECT_FALSE(std::filesystem::exists(dir));
}

TEST(Launcher, KilledTakesEveryStageAlongEvenAStoppedOne) {
  Launcher launcher;
  const auto stages = stages_of(launcher.run_dir());
  ASSERT_EQ(stages.size(), 5u);
  ::syscall(SYS_pidfd_send_signal, stages[1].get(), SIGSTOP, nullptr, 0);
  launcher.child.signal(SIGKILL);
  reap(launcher.child);
  for (const Fd& s : stages) wait_for_end(s);
  EXPECT_TRUE(wisp::service::live_runs(wisp::service::run_base()).empty());
  auto next = RunDir::create(5);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(wisp::service::run_base()),
                          std::filesystem::directory_iterator()),
            1)
      << "what the dead launcher left is removed by the next";
}

TEST(Launcher, AStageStartedByHandSaysWhoStartsIt) {
  Pipe pipe = std::move(*make_pipe());
  SpawnRequest request;
  request.path = TOY_STAGE;
  request.standard = {-1, pipe.write.get(), pipe.write.get()};
  Child child = std::move(*spawn(request));
  pipe.write.reset();
  std::string text(4096, '\0');
  std::size_t size = 0;
  for (ssize_t n; (n = ::read(pipe.read.get(), text.data() + size, text.size() - size)) > 0;)
    size += static_cast<std::size_t>(n);
  EXPECT_NE(text.find("wisp-launch"), std::string::npos);
  EXPECT_EQ(WEXITSTATUS(reap(child)), 2);
}

}  // namespace
}  // namespace wisp::launch::test
