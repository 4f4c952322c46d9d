#include "toy_run.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace wisp::launch::test {

using shm::StageId;

plan::RunPlan toy_plan() {
  plan::RunPlan p;
  p.model_name = "toy";
  p.options.port = 0;
  p.layers = 2;
  p.experts_per_layer = 4;
  p.expert_extents = 8;
  p.top_k = 1;
  p.slots = 4;
  p.stride = 4096;
  p.dense_bytes = 8192;
  p.ctx = 64;
  p.kv_pages = 4;
  p.kv_page_bytes = 4096;
  p.records = 4;
  p.parallel = 1;
  p.prompt_chunk = 16;
  p.threads = 1;
  p.profile = "exact";
  p.profile_hash = 7;
  return p;
}

Topology toy_topology(bool solo) {
  Topology t;
  t.name = "toy";
  if (solo) {
    t.processes.push_back({"toy", {shm::kRunningStages.begin(), shm::kRunningStages.end()}, {}});
    return t;
  }
  for (StageId s : shm::kRunningStages) t.processes.push_back({"toy", {s}, {}});
  return t;
}

PrivateRuntimeDir::PrivateRuntimeDir() {
  std::string name = (std::filesystem::temp_directory_path() / "wisp-test-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
  ::setenv("XDG_RUNTIME_DIR", path_.c_str(), 1);
  // A sanitizer turns a fault into an exit status; a toy is to die of the signal itself.
  for (const char* variable : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"})
    ::setenv(variable, "handle_segv=0:handle_abort=0", 1);
}

PrivateRuntimeDir::~PrivateRuntimeDir() {
  std::filesystem::remove_all(path_);
}

std::vector<std::string> PrivateRuntimeDir::entries() const {
  std::vector<std::string> out;
  for (const auto& e : std::filesystem::recursive_directory_iterator(path_)) out.push_back(e.path().string());
  return out;
}

ToyRun::ToyRun(plan::RunPlan plan, Topology topology) {
  SupervisorOptions o;
  o.plan = std::move(plan);
  o.topology = std::move(topology);
  o.find_program = [](const std::string&) { return std::string(TOY_STAGE); };
  o.launcher_program = WISP_LAUNCH;
  o.on_event = [this](const Event& e) { events.push_back(e); };
  auto made = Supervisor::create(std::move(o));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().text);
  supervisor_ = std::move(*made);
}

ToyRun::~ToyRun() = default;

void ToyRun::turn_until(const std::function<bool()>& done) {
  while (!done()) supervisor_->turn(1000);
}

void ToyRun::start_and_wait() {
  supervisor_->start();
  wait_all_ready();
}

void ToyRun::stop_and_wait() {
  supervisor_->stop();
  while (supervisor_->turn(1000)) {
  }
}

void ToyRun::kill(StageId s, int signal) const {
  ::kill(static_cast<pid_t>(pid(s)), signal);
}

bool ToyRun::all_ready() const {
  for (StageId s : shm::kRunningStages)
    if (life(s).state.load() != static_cast<std::uint32_t>(shm::StageState::kReady)) return false;
  return true;
}

void ToyRun::wait_all_ready() {
  turn_until([&] { return all_ready(); });
}

const shm::StageLife& ToyRun::life(StageId s) const {
  return supervisor_->regions().life().stage[shm::index(s)];
}

int ToyRun::count(Event::Kind kind) const {
  int n = 0;
  for (const Event& e : events) n += e.kind == kind ? 1 : 0;
  return n;
}

Result<Client::Answer> ToyRun::call(const std::function<void(proto::LaunchRequest::Builder)>& build) {
  std::atomic<bool> done = false;
  Result<Client::Answer> result = unavailable("not asked");
  std::thread client([&] {
    auto c = Client::connect(supervisor_->plan().run_dir);
    if (c.ok())
      result = c->call(build);
    else
      result = std::move(c).error();
    done = true;
  });
  while (!done) supervisor_->turn(10);
  client.join();
  return result;
}

void ToyRun::commit(std::uint64_t n) {
  auto answer = call([&](proto::LaunchRequest::Builder b) { b.setGate(n); });
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  turn_until([&] { return supervisor_->regions().progress().tokens >= n; });
}

}  // namespace wisp::launch::test
