#include <capnp/message.h>
#include <capnp/serialize.h>
#include <linux/close_range.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <thread>

#include "proto/codec.hpp"
#include "service/debug_layout.hpp"
#include "service/log.hpp"
#include "service/stage.hpp"

namespace wisp::service {

namespace {

constexpr int kUsageStatus = 2;
constexpr int kGiveUpStatus = 125;
/// A stage that is always busy looks at its control socket this often.
constexpr std::uint64_t kControlEveryNs = 10'000'000;

/// What the launcher's first packet says.
struct Configuration {
  plan::RunPlan plan;
  std::vector<shm::StageId> stages;
  std::vector<std::uint32_t> epochs;
};

void usage(const char* program, FILE* to) {
  std::fprintf(
      to,
      "%s is a stage of WISP. It is started by wisp-launch, which hands it its shared memory: run `wisp run`,"
      " `wisp serve`\nor `wisp-launch run` instead.\n\n"
      "  --help     print this\n  --version  print the version\n"
      "  --wait     stop before attaching, until SIGCONT (for a debugger; `wisp-launch debug STAGE "
      "--wait`)\n",
      program);
}

/// Handles what can be on the command line. Returns an exit code, or -1 to go on.
int read_arguments(int argc, char** argv, const char* program, bool& wait) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--version") {
      std::printf("%s %s\n", program, WISP_VERSION);
      return 0;
    }
    if (arg == "--help" || arg == "-h") {
      usage(program, stdout);
      return 0;
    }
    if (arg == "--wait") {
      wait = true;
      continue;
    }
    std::fprintf(stderr, "%s: unknown argument '%s'\n\n", program, argv[i]);
    usage(program, stderr);
    return kUsageStatus;
  }
  return -1;
}

bool started_by_launcher() {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fds::kControl, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/// Ties this process to the life of the launcher. A stopped or traced process reads no pipe, hence the
/// signal; the pipe tells whether the launcher died before the signal was asked for.
void die_with_launcher() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd p{fds::kLifeline, POLLIN, 0};
  if (::poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) ::_exit(0);
}

Result<Configuration> receive_configuration() {
  WISP_ASSIGN(proto::Packet packet, proto::receive_packet(fds::kControl, true));
  if (packet.closed) ::_exit(0);
  try {
    capnp::FlatArrayMessageReader reader(packet.message(), proto::reader_options());
    const auto message = reader.getRoot<proto::ToStage>();
    if (!message.isConfigure()) return invalid("the first control message is not `configure`");
    const auto configure = message.getConfigure();
    Configuration c;
    c.plan = proto::read_plan(configure.getPlan());
    for (std::uint32_t id : configure.getStages()) {
      if (id >= shm::kStages) return invalid("stage " + std::to_string(id) + " does not exist");
      c.stages.push_back(static_cast<shm::StageId>(id));
    }
    for (std::uint32_t e : configure.getEpochs()) c.epochs.push_back(e);
    if (c.stages.empty() || c.stages.size() != c.epochs.size())
      return invalid("`configure` names no stages, or not an epoch for each");
    return c;
  } catch (const kj::Exception& e) {
    return invalid(std::string("`configure` was not understood: ") + e.getDescription().cStr());
  }
}

/// Whether starting again with the same files and options could end otherwise.
bool may_pass(const Error& e) {
  return e.code == ErrorCode::kIo || e.code == ErrorCode::kUnavailable || e.code == ErrorCode::kExhausted;
}

[[noreturn]] void fail(StageContext& ctx, const Error& why) {
  if (!may_pass(why)) ctx.give_up(why);
  spdlog::error("{} could not start: {}", shm::name_of(ctx.id()), why.text);
  // Not shutdown(): in a folded process the other stages still log.
  spdlog::default_logger_raw()->flush();
  send_failure(fds::kControl, ctx.id(), why.text);
  ::_exit(1);
}

/// The life of one stage on its thread.
void host_stage(StageContext& ctx, const HostedStage& hosted) {
  ctx.bind_thread();
  if (ctx.desk()->attached_epoch.load(std::memory_order_acquire) >= ctx.epoch())
    fail(ctx, corrupt("the desk already belongs to this or a later epoch"));
  // The factory comes first: what it takes over from the predecessor must be settled before peers see the new
  // epoch.
  auto stage = hosted.make(ctx);
  if (!stage.ok()) fail(ctx, stage.error());
  ctx.desk()->parked.store(0, std::memory_order_seq_cst);
  ctx.desk()->attached_epoch.store(ctx.epoch(), std::memory_order_release);
  spdlog::info("{} attached, epoch {}", shm::name_of(ctx.id()), ctx.epoch());
  ctx.announce_ready();
  run_stage(ctx, **stage, [] { return false; });
}

const HostedStage* find(const std::vector<HostedStage>& stages, shm::StageId id) {
  for (const HostedStage& s : stages)
    if (s.id == id) return &s;
  return nullptr;
}

int fail_early(const char* program, shm::StageId stage, const Error& why) {
  std::fprintf(stderr, "%s: %s\n", program, why.text.c_str());
  send_failure(fds::kControl, stage, why.text);
  return kGiveUpStatus;
}

}  // namespace

void run_stage(StageContext& ctx, Stage& stage, const std::function<bool()>& stop) {
  ctx.bind_thread();
  for (shm::StageId s : shm::kRunningStages)
    if (s != ctx.id()) ctx.bell(s).ring();
  std::uint64_t looked = shm::monotonic_now();
  while (!stop()) {
    ctx.desk()->add(stats::Counter::kLoops);
    if (!stage.poll()) stage.sleep(ctx);
    const std::uint64_t now = shm::monotonic_now();
    if (now - looked < kControlEveryNs) continue;
    looked = now;
    ctx.poll_control();
  }
}

int host_main(int argc, char** argv, const char* program, const std::vector<HostedStage>& stages) {
  ::signal(SIGPIPE, SIG_IGN);
  WISP_CHECK(wisp_debug_layout[0].name != nullptr);  // and so the linker keeps the table for gdb
  bool wait = false;
  if (const int code = read_arguments(argc, argv, program, wait); code >= 0) return code;
  if (!started_by_launcher()) {
    usage(program, stderr);
    return kUsageStatus;
  }
  die_with_launcher();
  // No child of a stage may hold a region, a doorbell or a tombstone.
  ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
  if (wait) ::raise(SIGSTOP);

  auto configuration = receive_configuration();
  const shm::StageId first = configuration.ok() ? configuration->stages.front() : stages.front().id;
  if (!configuration.ok()) return fail_early(program, first, configuration.error());
  for (shm::StageId s : configuration->stages)
    if (find(stages, s) == nullptr)
      return fail_early(program, s,
                        invalid("this program does not host stage " + std::string(shm::name_of(s))));
  auto attached = attach_inherited(configuration->stages);
  if (!attached.ok()) return fail_early(program, first, attached.error());
  Attachment at = std::move(*attached);
  at.plan = std::move(configuration->plan);
  at.process = std::make_shared<ProcessPart>();
  at.process->control = fds::kControl;
  at.process->ready = fds::kReady;
  at.process->lifeline = fds::kLifeline;
  set_up_log(at.plan.run_dir, program, configuration->epochs.front(), at.plan.options.log_level, at.life);
  if (auto fits = check_against_plan(at); !fits.ok()) return fail_early(program, first, fits.error());

  std::deque<StageContext> contexts;
  for (std::size_t i = 0; i < configuration->stages.size(); ++i)
    contexts.emplace_back(at, configuration->stages[i], configuration->epochs[i]);
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < contexts.size(); ++i)
    threads.emplace_back([&, i] { host_stage(contexts[i], *find(stages, contexts[i].id())); });
  host_stage(contexts.front(), *find(stages, contexts.front().id()));
  return 0;
}

}  // namespace wisp::service
