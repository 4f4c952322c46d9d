#include "launch/commands.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>

#include "launch/client.hpp"
#include "launch/topology.hpp"
#include "plan/run_plan.hpp"
#include "service/live_runs.hpp"
#include "shm/life.hpp"

namespace wisp::launch {

namespace {

using Build = std::function<void(proto::LaunchRequest::Builder)>;

int fail(const Error& e) {
  std::fprintf(stderr, "wisp-launch: %s\n", e.text.c_str());
  return 1;
}

Result<Client> connect(const std::string& run, service::Purpose purpose) {
  WISP_ASSIGN(const std::string dir, service::find_run(run, purpose));
  return Client::connect(dir);
}

/// A request that changes something, and whose answer is one line.
int simple(const std::string& run, const Build& build) {
  auto client = connect(run, service::Purpose::kChange);
  if (!client.ok()) return fail(client.error());
  auto answer = client->call(build);
  if (!answer.ok()) return fail(answer.error());
  std::printf("%s\n", answer->text.c_str());
  return 0;
}

const char* name_of_state(std::uint32_t state) {
  constexpr std::array<const char*, 6> names{"down",        "starting", "ready",
                                             "backing off", "given up", "stopping"};
  return state < names.size() ? names[state] : "?";
}

void print_stage(const shm::Life& life, shm::StageId s) {
  const shm::StageLife& l = life.stage[shm::index(s)];
  const std::uint32_t tracer = l.traced_by.load(std::memory_order_relaxed);
  std::string held;
  if (tracer != 0)
    held = fmt::format("traced by {}", tracer);
  else if (l.stopped.load(std::memory_order_relaxed) != 0)
    held = "stopped";
  std::printf("%-10s %-12s %8u %6u %9u  %s\n", std::string(shm::name_of(s)).c_str(),
              name_of_state(l.state.load(std::memory_order_acquire)), l.pid.load(std::memory_order_relaxed),
              l.epoch.load(std::memory_order_relaxed), l.restarts.load(std::memory_order_relaxed),
              held.c_str());
}

}  // namespace

int show_status(const std::string& run) {
  auto client = connect(run, service::Purpose::kLook);
  if (!client.ok()) return fail(client.error());
  auto answer = client->call([](proto::LaunchRequest::Builder b) { b.setStatus(); });
  if (!answer.ok()) return fail(answer.error());
  auto mapping = shm::Mapping::map(answer->descriptor("life"), false);
  if (!mapping.ok()) return fail(mapping.error());
  if (auto good = shm::check_header(*mapping, shm::RegionKind::kLife); !good.ok()) return fail(good.error());
  const auto& life = *static_cast<const shm::Life*>(mapping->data());
  std::printf("model      %s\nrun        %s\n", answer->plan.model_name.c_str(),
              answer->plan.run_dir.c_str());
  if (answer->port != 0) std::printf("listens    %s:%u\n", answer->plan.options.host.c_str(), answer->port);
  std::printf("socket     %s\n", answer->unix_socket.c_str());
  std::printf("memory     %s now, %s at most so far\n", plan::format_size(life.ram_now_bytes.load()).c_str(),
              plan::format_size(life.ram_peak_bytes.load()).c_str());
  std::printf("resets     %u\n\n%-10s %-12s %8s %6s %9s\n", life.resets.load(), "stage", "state", "pid",
              "epoch", "restarts");
  for (shm::StageId s : shm::kRunningStages) print_stage(life, s);
  if (life.paused_since_ns.load() != 0) std::printf("\nthe engine clock stands still: a stage is held\n");
  for (shm::StageId s : shm::kRunningStages)
    if (life.stage[shm::index(s)].state.load() == static_cast<std::uint32_t>(shm::StageState::kGivenUp))
      std::printf("\ngiven up: %.255s\n`wisp-launch restart %s` tries again\n",
                  shm::is_optional(s) ? "the speculator (the log says why); answers go on without it"
                                      : life.give_up_reason,
                  std::string(shm::name_of(s)).c_str());
  return 0;
}

int stop(const std::string& run) {
  auto dir = service::find_run(run, service::Purpose::kChange);
  if (!dir.ok()) return fail(dir.error());
  auto client = Client::connect(*dir);
  if (!client.ok()) return fail(client.error());
  auto answer = client->call([](proto::LaunchRequest::Builder b) { b.setStop(); });
  if (!answer.ok()) return fail(answer.error());
  client->wait_for_end();
  std::printf("stopped %s\n", dir->c_str());
  return 0;
}

int restart(const std::string& run, const std::string& stage) {
  return simple(run, [&](proto::LaunchRequest::Builder b) { b.setRestart(stage); });
}

int set_gate(const std::string& run, const std::string& gate) {
  std::uint64_t steps = ~0ULL;
  if (gate != "open") {
    const auto [end, error] = std::from_chars(gate.data(), gate.data() + gate.size(), steps);
    if (error != std::errc() || end != gate.data() + gate.size())
      return fail(invalid("gate '" + gate + "': give a number of steps, or open"));
  }
  return simple(run, [&](proto::LaunchRequest::Builder b) { b.setGate(steps); });
}

int arm_crash(const std::string& run, const std::string& stage, const std::string& point, std::uint32_t count,
              std::uint32_t signal) {
  return simple(run, [&](proto::LaunchRequest::Builder b) {
    auto c = b.initArmCrash();
    c.setStage(stage);
    c.setPoint(point);
    c.setCountdown(count);
    c.setSignal(signal);
  });
}

}  // namespace wisp::launch
