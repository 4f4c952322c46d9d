#include <capnp/serialize.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launch/commands.hpp"
#include "launch/supervisor.hpp"
#include "service/log.hpp"

namespace wisp::launch {

namespace {

constexpr std::size_t kMaxWaitingLines = 1000;
constexpr int kFailed = 1;

/// Reads a flat Cap'n Proto message until the end of the file. Errors: kIo, kInvalid.
Result<plan::RunPlan> read_plan_from(int fd) {
  proto::Packet packet{std::vector<std::uint64_t>(proto::kMaxPacket / sizeof(capnp::word)), {}, false};
  std::size_t size = 0;
  auto* bytes = reinterpret_cast<char*>(packet.words.data());
  while (size < proto::kMaxPacket) {
    const ssize_t n = ::read(fd, bytes + size, proto::kMaxPacket - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return io_error("reading the plan from descriptor " + std::to_string(fd) + ": " + std::strerror(errno));
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }
  if (size == 0 || size == proto::kMaxPacket || size % sizeof(capnp::word) != 0)
    return invalid("descriptor " + std::to_string(fd) +
                   " holds no plan; `wisp run` and `wisp serve` write it");
  try {
    packet.words.resize(size / sizeof(capnp::word));
    capnp::FlatArrayMessageReader reader(packet.message(), proto::reader_options());
    return proto::read_plan(reader.getRoot<proto::RunPlan>());
  } catch (const kj::Exception& e) {
    return invalid(std::string("the plan was not understood: ") + e.getDescription().cStr());
  }
}

/// Numbers that a region can be made of. The plan comes from a program of ours, but a descriptor is a
/// descriptor.
Status check_plan(const plan::RunPlan& p) {
  const auto too_large = [](std::uint64_t n, std::uint64_t size) {
    std::uint64_t bytes = 0;
    return __builtin_mul_overflow(n, size, &bytes) || bytes > (1ULL << 50);
  };
  const bool no_slots = p.slots == 0 && p.expert_extents != 0;
  if (no_slots || p.records == 0 || p.ctx == 0 || p.layers == 0)
    return invalid("the plan has no slots, records, context or layers");
  if (too_large(p.slots, p.stride) || too_large(p.kv_pages, p.kv_page_bytes) || too_large(p.dense_bytes, 1) ||
      too_large(p.layers, p.experts_per_layer) || too_large(p.records, p.ctx))
    return invalid("the plan asks for more memory than an address space holds");
  if (p.kv_format > kernels::KvFormat::kBf16) return invalid("the plan's KV format is unknown");
  return {};
}

/// Writes lines without ever waiting for the reader.
class Announcer {
 public:
  explicit Announcer(int fd) : fd_(fd) {}
  void say(const std::string& line) {
    if (waiting_.size() < kMaxWaitingLines) waiting_.push_back(line + "\n");
    flush();
  }
  void flush() {
    while (!waiting_.empty()) {
      pollfd p{fd_, POLLOUT, 0};
      if (::poll(&p, 1, 0) <= 0 || (p.revents & POLLOUT) == 0) return;
      std::string& line = waiting_.front();
      const ssize_t n = ::write(fd_, line.data(), line.size());
      if (n < 0) {
        if (errno != EINTR && errno != EAGAIN) waiting_.clear();
        return;
      }
      line.erase(0, static_cast<std::size_t>(n));
      if (line.empty()) waiting_.pop_front();
    }
  }

 private:
  int fd_;
  std::deque<std::string> waiting_;
};

/// The signals that stop a run. Where a parent holds the lifeline, Ctrl-C at their common terminal is the
/// parent's.
Fd stop_signals(bool has_parent) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  if (has_parent)
    ::signal(SIGINT, SIG_IGN);
  else
    sigaddset(&set, SIGINT);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  return Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

Result<std::unique_ptr<Supervisor>> make_supervisor(const RunCommand& command, Announcer& announcer) {
  WISP_TRY(allow_descriptors());
  SupervisorOptions options;
  WISP_ASSIGN(options.plan, read_plan_from(command.plan_fd));
  WISP_TRY(check_plan(options.plan));
  const std::string topologies =
      command.topologies.empty() ? shared_file("topologies", "topologies") : command.topologies;
  WISP_ASSIGN(options.topology, load_topology(options.plan.options.topology, topologies));
  const std::string programs = command.programs.empty() ? program_directory() : command.programs;
  options.find_program = [programs](const std::string& name) { return programs + "/" + name; };
  options.launcher_program = "/proc/self/exe";
  options.gdb_script = shared_file("gdb/wisp.py", "gdb/wisp.py");
  options.on_event = [&announcer](const Event& e) { announcer.say(to_json(e)); };
  return Supervisor::create(std::move(options));
}

/// Errors: kInvalid where the option does not name an open pipe or socket.
Status check_lifeline(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))) return {};
  return invalid("--lifeline-fd " + std::to_string(fd) + " is not an open pipe or socket");
}

int fail(const Error& e) {
  std::fprintf(stderr, "wisp-launch: %s\n", e.text.c_str());
  return kFailed;
}

}  // namespace

std::string program_directory() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

std::string shared_file(const std::string& installed, const std::string& in_build_tree) {
  const std::string first = program_directory() + "/../share/wisp/" + installed;
  std::error_code ignored;
  if (std::filesystem::exists(first, ignored)) return first;
  return program_directory() + "/" + in_build_tree;
}

int run(const RunCommand& command) {
  ::signal(SIGPIPE, SIG_IGN);
  // Nothing that was left open for the launcher may reach a stage.
  ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
  if (command.lifeline_fd >= 0)
    if (auto good = check_lifeline(command.lifeline_fd); !good.ok()) return fail(good.error());
  Announcer announcer(command.announce_fd);
  Fd signals = stop_signals(command.lifeline_fd >= 0);
  auto made = make_supervisor(command, announcer);
  if (!made.ok()) {
    announcer.say(nlohmann::ordered_json({{"event", "failed"}, {"text", made.error().text}}).dump());
    return command.lifeline_fd >= 0 ? kFailed : fail(made.error());
  }
  Supervisor& supervisor = **made;
  service::set_up_log(supervisor.plan().run_dir, "launch", 0, supervisor.plan().options.log_level, nullptr);
  supervisor.poller().add(signals.get(), EPOLLIN, [&](std::uint32_t) {
    signalfd_siginfo info;
    while (::read(signals.get(), &info, sizeof info) == sizeof info) {
    }
    supervisor.stop();
  });
  if (command.lifeline_fd >= 0) {
    supervisor.poller().add(command.lifeline_fd, EPOLLIN, [&](std::uint32_t) {
      char byte;
      if (::read(command.lifeline_fd, &byte, 1) > 0) return;
      supervisor.poller().remove(command.lifeline_fd);
      supervisor.stop();
    });
  }
  supervisor.start();
  while (supervisor.turn(1000)) announcer.flush();
  announcer.flush();
  spdlog::shutdown();
  return supervisor.failed_to_start() ? kFailed : 0;
}

}  // namespace wisp::launch
