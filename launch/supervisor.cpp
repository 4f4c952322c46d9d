#include "launch/supervisor.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "service/fds.hpp"

namespace wisp::launch {

namespace fds = service::fds;
using shm::StageId;
using shm::StageState;

namespace {

StageState state_for(Phase phase) {
  switch (phase) {
    case Phase::kDown:
      return StageState::kDown;
    case Phase::kWaiting:
      return StageState::kBackingOff;
    case Phase::kStarting:
      return StageState::kStarting;
    case Phase::kReady:
      return StageState::kReady;
    case Phase::kGivenUp:
      return StageState::kGivenUp;
  }
  return StageState::kDown;
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options) : options_(std::move(options)) {}

Supervisor::~Supervisor() {
  // Whoever destroys a running supervisor wants no process left; reaping here keeps them from becoming
  // orphans.
  for (auto& p : processes_) {
    if (!p->child.alive()) continue;
    p->child.signal(SIGKILL);
    reap(p->child);
  }
  dir_.remove();
}

Result<std::unique_ptr<Supervisor>> Supervisor::create(SupervisorOptions options) {
  std::unique_ptr<Supervisor> s(new Supervisor(std::move(options)));
  std::uint64_t run_id = 0;
  if (::getrandom(&run_id, sizeof run_id, 0) != sizeof run_id)
    return io_error("no random bytes for the run's id");
  for (const ProcessSpec& spec : s->options_.topology.processes) {
    s->processes_.push_back(std::make_unique<Process>());
    s->processes_.back()->spec = spec;
    s->processes_.back()->policy = RestartPolicy(spec.restart);
  }
  WISP_TRY(s->check_programs());
  WISP_ASSIGN(s->dir_, RunDir::create(run_id));
  s->options_.plan.run_dir = s->dir_.path();
  WISP_TRY(s->open_sockets());
  WISP_TRY(s->watch_signals());
  WISP_ASSIGN(s->lifeline_, make_pipe());
  WISP_ASSIGN(s->regions_, Regions::create(s->options_.plan, run_id));
  return s;
}

Status Supervisor::check_programs() const {
  for (const auto& p : processes_) {
    const std::string path = options_.find_program(p->spec.program);
    if (::access(path.c_str(), X_OK) != 0)
      return not_found("program " + path + " of topology " + options_.topology.name + ": " +
                       std::strerror(errno) + "; all programs of WISP must lie beside wisp-launch");
  }
  return {};
}

Status Supervisor::open_sockets() {
  const plan::RunOptions& o = options_.plan.options;
  WISP_ASSIGN(http_, listen_unix(dir_.http_socket(), SOCK_STREAM));
  WISP_ASSIGN(control_, listen_unix(dir_.control(), SOCK_SEQPACKET));
  ::fcntl(control_.get(), F_SETFL, O_NONBLOCK);
  poller_.add(control_.get(), EPOLLIN, [this](std::uint32_t) { on_connect(); });
  if (o.port >= 0) {
    WISP_ASSIGN(tcp_, listen_tcp(o.host, o.port));
  }
  if (!o.logits_dir.empty()) {
    logits_dir_.reset(::open(o.logits_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!logits_dir_.valid()) return io_error("--logits " + o.logits_dir + ": " + std::strerror(errno));
  }
  return {};
}

Status Supervisor::watch_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  child_signal_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!child_signal_.valid()) return io_error(std::string("signalfd: ") + std::strerror(errno));
  // Deaths come by pidfd. This one tells at once that a child was stopped or goes on.
  poller_.add(child_signal_.get(), EPOLLIN, [this](std::uint32_t) {
    signalfd_siginfo info;
    while (::read(child_signal_.get(), &info, sizeof info) == sizeof info) {
    }
    look_due_ns_ = 0;
  });
  return {};
}

void Supervisor::start() {
  for (auto& p : processes_) {
    p->due_ns = 0;
    enter(*p, Phase::kWaiting);
  }
}

bool Supervisor::turn(int timeout_ms) {
  if (mode_ == Mode::kStopped) return false;
  advance();
  poller_.turn(next_timeout(timeout_ms));
  advance();
  return mode_ != Mode::kStopped;
}

int Supervisor::next_timeout(int timeout_ms) const {
  std::uint64_t due = std::min(look_due_ns_, memory_due_ns_);
  if (mode_ == Mode::kRunning)
    for (const auto& p : processes_)
      if (p->phase == Phase::kWaiting && may_begin(*p)) due = std::min(due, p->due_ns);
  if (mode_ == Mode::kResetting && !any_child() && tombstones_.empty()) due = std::min(due, reset_due_ns_);
  if (mode_ == Mode::kStopping && kill_due_ns_ != 0) due = std::min(due, kill_due_ns_);
  const std::uint64_t now = shm::monotonic_now();
  const std::uint64_t ms = due > now ? (due - now + 999'999) / 1'000'000 : 0;
  return static_cast<int>(
      std::min<std::uint64_t>(ms, timeout_ms < 0 ? 1000u : static_cast<unsigned>(timeout_ms)));
}

void Supervisor::advance() {
  upkeep();
  if (failed_to_start_) stop();
  if (mode_ == Mode::kStopping) finish_stop();
  if (mode_ == Mode::kResetting) finish_reset();
  if (mode_ == Mode::kRunning)
    for (auto& p : processes_) start_if_due(*p);
}

void Supervisor::enter(Process& p, Phase phase) {
  p.phase = phase;
  set_stage_states(p, state_for(phase));
  regions_.ring_all();
  announce_when_ready();
}

/// Whether the run is open only with it: a stage that no request can do without, and the speculator where a
/// number of drafts is demanded, until its first life has come to nothing.
bool Supervisor::awaited(const Process& p) const {
  if (p.phase == Phase::kReady) return false;
  if (!p.optional()) return true;
  const auto& life = regions_.life().stage[shm::index(p.spec.stages.front())];
  return options_.plan.options.fixed_drafts() > 0 && life.dead_through.load(std::memory_order_relaxed) == 0;
}

void Supervisor::announce_when_ready() {
  if (announced_ || mode_ != Mode::kRunning) return;
  if (std::any_of(processes_.begin(), processes_.end(), [this](const auto& p) { return awaited(*p); }))
    return;
  announced_ = true;
  options_.on_event({.kind = Event::Kind::kAllReady,
                     .run_dir = dir_.path(),
                     .port = tcp_.port,
                     .unix_socket = dir_.http_socket()});
}

void Supervisor::set_stage_states(const Process& p, StageState state) {
  for (StageId s : p.spec.stages)
    regions_.life().stage[shm::index(s)].state.store(static_cast<std::uint32_t>(state),
                                                     std::memory_order_release);
}

std::uint32_t Supervisor::epoch_of(const Process& p) const {
  return regions_.life().stage[shm::index(p.spec.stages.front())].epoch.load(std::memory_order_relaxed);
}

/// A loader epoch shares its entry of `drained` with the one kDrainWindow before, so that one must have
/// drained.
bool Supervisor::may_begin(const Process& p) const {
  if (!p.spec.hosts(StageId::kLoader)) return true;
  const auto& life = regions_.life().stage[shm::index(StageId::kLoader)];
  const std::uint32_t next = life.epoch.load(std::memory_order_relaxed) + 1;
  return std::none_of(tombstones_.begin(), tombstones_.end(),
                      [&](const Tombstone& t) { return t.epoch + shm::kDrainWindow <= next; });
}

void Supervisor::start_if_due(Process& p) {
  if (p.phase != Phase::kWaiting || shm::monotonic_now() < p.due_ns || !may_begin(p)) return;
  auto started = start_process(p);
  if (started.ok()) return;
  spdlog::error("{}: {}", stages_of(p), started.error().text);
  if (p.child.alive()) {
    p.child.signal(SIGKILL);  // it was started, but nothing could be told to it: an ordinary death follows
    return;
  }
  record_death(p, 0);
  p.failure = started.error().text;
  const RestartDecision d = p.policy.on_death(false);
  if (d.give_up || started.error().code == ErrorCode::kNotFound) return give_up(p, p.failure);
  p.due_ns = shm::monotonic_now() + d.delay_ms * 1'000'000;
  enter(p, Phase::kWaiting);
}

SpawnRequest Supervisor::spawn_request(Process& p) const {
  SpawnRequest request;
  request.path = options_.find_program(p.spec.program);
  if (p.next.wait) request.arguments.push_back("--wait");
  if (!p.next.replace.empty()) {
    request.path = options_.launcher_program;
    request.arguments = {"exec-child", p.next.replace};
    request.new_session = true;
    for (std::size_t i = 0; i < 3; ++i) request.standard[i] = p.next.standard[i].get();
  }
  request.grants = regions_.grants(p.spec.stages);
  request.grants.push_back({lifeline_.read.get(), fds::kLifeline});
  if (p.spec.hosts(StageId::kGateway)) {
    if (tcp_.socket.valid()) request.grants.push_back({tcp_.socket.get(), fds::kListenTcp});
    request.grants.push_back({http_.get(), fds::kListenUnix});
  }
  if (p.spec.hosts(StageId::kCompute) && logits_dir_.valid())
    request.grants.push_back({logits_dir_.get(), fds::kLogitsDir});
  return request;
}

Status Supervisor::grant_pipes(Process& p, SpawnRequest& request, Fd& ready_end, Fd& control_end,
                               Fd& tombstone_end) {
  WISP_ASSIGN(Pipe ready, make_pipe());
  WISP_ASSIGN(SocketPair control, make_socket_pair());
  ::fcntl(ready.read.get(), F_SETFL, O_NONBLOCK);
  p.ready = std::move(ready.read);
  p.control = std::move(control.ours);
  ready_end = std::move(ready.write);
  control_end = std::move(control.theirs);
  request.grants.push_back({ready_end.get(), fds::kReady});
  request.grants.push_back({control_end.get(), fds::kControl});
  if (!p.spec.hosts(StageId::kLoader)) return {};
  WISP_ASSIGN(Pipe tombstone, make_pipe());
  tombstone_end = std::move(tombstone.write);
  request.grants.push_back({tombstone_end.get(), fds::kTombstone});
  add_tombstone(regions_.life().stage[shm::index(StageId::kLoader)].epoch.load() + 1,
                std::move(tombstone.read));
  return {};
}

void Supervisor::begin_epoch(Process& p) {
  p.stage_ready = {};
  p.failure.clear();
  const std::uint64_t now = shm::engine_now(regions_.life());
  for (StageId s : p.spec.stages) {
    shm::StageLife& life = regions_.life().stage[shm::index(s)];
    const std::uint32_t epoch = life.epoch.load(std::memory_order_relaxed) + 1;
    life.started_ns.store(now, std::memory_order_relaxed);
    if (epoch > 1) life.restarts.fetch_add(1, std::memory_order_relaxed);
    life.epoch.store(epoch, std::memory_order_release);
  }
}

Status Supervisor::start_process(Process& p) {
  // The ends that the child gets close here when this returns: the tombstone's is then the child's alone.
  Fd ready_end;
  Fd control_end;
  Fd tombstone_end;
  SpawnRequest request = spawn_request(p);
  auto granted = grant_pipes(p, request, ready_end, control_end, tombstone_end);
  begin_epoch(p);
  if (!granted.ok()) return granted;
  p.replaced = !p.next.replace.empty();
  auto child = spawn(request);
  const int reply_to = p.next.reply_to;
  p.next = StartMode();
  if (!child.ok()) {
    reply_text(reply_to, false, child.error().text);
    return std::move(child).error();
  }
  p.child = std::move(*child);
  for (StageId s : p.spec.stages)
    regions_.life().stage[shm::index(s)].pid.store(static_cast<std::uint32_t>(p.child.pid),
                                                   std::memory_order_release);
  adjust_oom_score(p.child.pid, p.spec.stages.front());
  watch_child(p);
  enter(p, Phase::kStarting);
  spdlog::info("{} started: epoch {}, pid {}", stages_of(p), epoch_of(p), p.child.pid);
  if (reply_to >= 0) {
    capnp::MallocMessageBuilder message;
    auto reply = message.initRoot<proto::LaunchReply>();
    reply.setOk(true);
    fill_status(reply);
    send_reply(reply_to, message);
  }
  return configure(p);
}

Status Supervisor::configure(Process& p) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<proto::ToStage>().initConfigure();
  proto::write_plan(options_.plan, to.initPlan());
  const auto count = static_cast<unsigned>(p.spec.stages.size());
  auto stages = to.initStages(count);
  auto epochs = to.initEpochs(count);
  for (unsigned i = 0; i < count; ++i) {
    const std::uint32_t s = shm::index(p.spec.stages[i]);
    stages.set(i, s);
    epochs.set(i, regions_.life().stage[s].epoch.load(std::memory_order_relaxed));
  }
  return proto::send_packet(p.control.get(), message);
}

void Supervisor::watch_child(Process& p) {
  poller_.add(p.child.pidfd.get(), EPOLLIN, [this, &p](std::uint32_t) { on_exit(p); });
  poller_.add(p.ready.get(), EPOLLIN, [this, &p](std::uint32_t) { on_ready(p); });
  poller_.add(p.control.get(), EPOLLIN, [this, &p](std::uint32_t) { on_stage_message(p); });
}

void Supervisor::on_ready(Process& p) {
  std::array<unsigned char, 16> bytes;
  const ssize_t n = ::read(p.ready.get(), bytes.data(), bytes.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return poller_.remove(p.ready.get());
  for (ssize_t i = 0; i < n; ++i) {
    const unsigned char id = bytes[static_cast<std::size_t>(i)];
    if (id >= shm::kStages || !p.spec.hosts(static_cast<StageId>(id)) || p.stage_ready[id]) continue;
    p.stage_ready[id] = true;
    regions_.life().stage[id].state.store(static_cast<std::uint32_t>(StageState::kReady),
                                          std::memory_order_release);
    regions_.ring_all();
    if (announced_ && epoch_of(p) > 1)
      options_.on_event(
          {.kind = Event::Kind::kStageReady, .stage = std::string(shm::name_of(static_cast<StageId>(id)))});
  }
  const bool all = std::all_of(p.spec.stages.begin(), p.spec.stages.end(),
                               [&](StageId s) { return p.stage_ready[shm::index(s)]; });
  if (!all || p.phase != Phase::kStarting) return;
  enter(p, Phase::kReady);
}

void Supervisor::on_stage_message(Process& p) {
  auto packet = proto::receive_packet(p.control.get(), false);
  if (!packet.ok() || packet->closed) return poller_.remove(p.control.get());
  for (int fd : packet->descriptors) ::close(fd);
  if (packet->words.empty()) return;
  try {
    capnp::FlatArrayMessageReader reader(packet->message(), proto::reader_options());
    const auto message = reader.getRoot<proto::ToLauncher>();
    if (message.isFailed()) p.failure = message.getFailed().getWhy().cStr();
  } catch (const kj::Exception& e) {
    spdlog::warn("a message of {} was not understood: {}", stages_of(p), e.getDescription().cStr());
  }
}

Supervisor::Process* Supervisor::hosting(StageId s) {
  for (auto& p : processes_)
    if (p->spec.hosts(s)) return p.get();
  return nullptr;
}

std::string Supervisor::stages_of(const Process& p) const {
  std::string text;
  for (StageId s : p.spec.stages) text += (text.empty() ? "" : "+") + std::string(shm::name_of(s));
  return text;
}

}  // namespace wisp::launch
