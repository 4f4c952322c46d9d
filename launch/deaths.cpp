#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "launch/supervisor.hpp"

namespace wisp::launch {

using shm::StageId;

namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kStopPatienceNs = 5'000 * kMs;

std::string describe(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(wait_status));
    return "killed by " +
           (name != nullptr ? "SIG" + std::string(name) : std::to_string(WTERMSIG(wait_status)));
  }
  return "ended with status " + std::to_string(WEXITSTATUS(wait_status));
}

}  // namespace

void Supervisor::on_exit(Process& p) {
  on_stage_message(p);  // what it said last may still lie in the socket
  poller_.remove(p.child.pidfd.get());
  poller_.remove(p.ready.get());
  poller_.remove(p.control.get());
  const int wait_status = reap(p.child);
  p.ready.reset();
  p.control.reset();
  record_death(p, wait_status);
  if (mode_ == Mode::kStopping || mode_ == Mode::kResetting) {
    if (p.phase != Phase::kGivenUp) enter(p, Phase::kDown);
    return;
  }
  decide(p, wait_status);
}

void Supervisor::record_death(Process& p, int wait_status) {
  for (StageId s : p.spec.stages) {
    shm::StageLife& life = regions_.life().stage[shm::index(s)];
    life.pid.store(0, std::memory_order_relaxed);
    life.stopped.store(0, std::memory_order_relaxed);
    life.traced_by.store(0, std::memory_order_relaxed);
    life.last_status.store(static_cast<std::uint32_t>(wait_status), std::memory_order_relaxed);
    life.died_ns.store(shm::monotonic_now(), std::memory_order_relaxed);
    life.dead_through.store(life.epoch.load(std::memory_order_relaxed), std::memory_order_release);
  }
  regions_.ring_all();
  look_due_ns_ = 0;  // it may have been the one that held the clock
}

bool Supervisor::progressed(Process& p, int wait_status) {
  const Progress now = regions_.progress();
  const bool tokens = now.tokens != p.last.tokens;
  const bool reads = now.reads != p.last.reads && killed_from_outside(wait_status);
  p.last = now;
  return tokens || reads;
}

void Supervisor::decide(Process& p, int wait_status) {
  const DeathCause cause = cause_of(wait_status);
  const std::string what = describe(wait_status) + (p.failure.empty() ? "" : ": " + p.failure);
  RestartDecision decision;
  if (p.by_hand)
    p.policy.forgive();
  else
    decision = p.policy.on_death(progressed(p, wait_status));
  if (cause == DeathCause::kRefuses) decision.give_up = true;
  const bool asked = p.by_hand;
  p.by_hand = false;
  p.due_ns = shm::monotonic_now() + decision.delay_ms * kMs;

  spdlog::info("{}, epoch {}, {}", stages_of(p), epoch_of(p), what);
  for (StageId s : p.spec.stages) {
    options_.on_event({.kind = Event::Kind::kStageDied,
                       .stage = std::string(shm::name_of(s)),
                       .signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0,
                       .status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0,
                       .restarting = !decision.give_up});
    if (asked || regions_.desk(s) == nullptr) continue;
    for (const std::string& line : post_mortem(*regions_.desk(s)))
      spdlog::info("{}: {}", shm::name_of(s), line);
  }
  if (decision.give_up) {
    std::string why = stages_of(p) + " " + what;
    if (cause != DeathCause::kRefuses)
      why += "; " + std::to_string(p.policy.deaths()) + " deaths without progress: not started again";
    give_up(p, why);
  } else {
    enter(p, Phase::kWaiting);
  }
  if (cause == DeathCause::kDirty && !failed_to_start_) begin_reset(p, wait_status);
}

void Supervisor::give_up(Process& p, const std::string& why) {
  if (p.optional()) {
    spdlog::warn("given up: {}; answers go on without it", why);
    return enter(p, Phase::kGivenUp);
  }
  shm::Life& life = regions_.life();
  std::memset(life.give_up_reason, 0, sizeof life.give_up_reason);
  std::strncpy(life.give_up_reason, why.c_str(), sizeof life.give_up_reason - 1);
  spdlog::error("given up: {}", why);
  enter(p, Phase::kGivenUp);
  for (StageId s : p.spec.stages)
    options_.on_event({.kind = Event::Kind::kGivenUp, .stage = std::string(shm::name_of(s)), .why = why});
  failed_to_start_ |= !announced_;
}

void Supervisor::begin_reset(const Process& culprit, int wait_status) {
  const std::string why = stages_of(culprit) + " " + describe(wait_status);
  spdlog::info("reset: {}; all regions but the journal are made anew", why);
  mode_ = Mode::kResetting;
  reset_due_ns_ = culprit.due_ns;
  for (auto& p : processes_)
    if (p->phase != Phase::kGivenUp && !p->child.alive()) enter(*p, Phase::kDown);
  kill_all(SIGKILL);
  for (StageId s : culprit.spec.stages)
    options_.on_event({.kind = Event::Kind::kReset,
                       .stage = std::string(shm::name_of(s)),
                       .signal = WTERMSIG(wait_status),
                       .why = why});
}

void Supervisor::finish_reset() {
  // Reads that a dead loader asked for may still land in the old slab: it is let go after the last tombstone.
  if (any_child() || !tombstones_.empty() || shm::monotonic_now() < reset_due_ns_) return;
  auto renewed = regions_.renew();
  mode_ = Mode::kRunning;
  if (!renewed.ok()) {
    for (auto& p : processes_) give_up(*p, "making fresh regions: " + renewed.error().text);
    return;
  }
  regions_.life().resets.fetch_add(1, std::memory_order_release);
  for (auto& p : processes_) {
    if (p->phase == Phase::kGivenUp) continue;
    p->due_ns = 0;
    p->by_hand = false;
    enter(*p, Phase::kWaiting);
  }
}

void Supervisor::stop() {
  if (mode_ == Mode::kStopping || mode_ == Mode::kStopped) return;
  mode_ = Mode::kStopping;
  regions_.life().shutting_down.store(1, std::memory_order_release);
  kill_due_ns_ = shm::monotonic_now() + kStopPatienceNs;
  for (auto& p : processes_)
    set_stage_states(*p, p->child.alive() ? shm::StageState::kStopping : shm::StageState::kDown);
  regions_.ring_all();
  kill_all(SIGTERM);
  kill_all(SIGCONT);
}

void Supervisor::finish_stop() {
  if (!any_child()) {
    mode_ = Mode::kStopped;
    dir_.remove();
    return;
  }
  if (kill_due_ns_ == 0 || shm::monotonic_now() < kill_due_ns_) return;
  kill_due_ns_ = 0;
  kill_all(SIGKILL);
}

void Supervisor::add_tombstone(std::uint32_t epoch, Fd read_end) {
  const int fd = read_end.get();
  tombstones_.push_back({epoch, std::move(read_end)});
  poller_.add(fd, EPOLLHUP, [this, epoch](std::uint32_t) { on_tombstone(epoch); });
}

void Supervisor::on_tombstone(std::uint32_t epoch) {
  const auto at = std::find_if(tombstones_.begin(), tombstones_.end(),
                               [&](const Tombstone& t) { return t.epoch == epoch; });
  if (at == tombstones_.end()) return;
  poller_.remove(at->read_end.get());
  tombstones_.erase(at);
  regions_.life().stage[shm::index(StageId::kLoader)].drained[epoch % shm::kDrainWindow].store(
      epoch, std::memory_order_release);
  regions_.ring_all();
  spdlog::info("loader epoch {} has drained", epoch);
}

bool Supervisor::any_child() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const auto& p) { return p->child.alive(); });
}

void Supervisor::kill_all(int signal) {
  for (auto& p : processes_) p->child.signal(signal);
}

}  // namespace wisp::launch
