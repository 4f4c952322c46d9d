#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/fd.hpp"
#include "launch/client.hpp"
#include "launch/commands.hpp"
#include "launch/topology.hpp"
#include "service/fds.hpp"
#include "service/live_runs.hpp"

namespace wisp::launch {

namespace {

int fail(const Error& e) {
  std::fprintf(stderr, "wisp-launch: %s\n", e.text.c_str());
  return 1;
}

/// Yama's mode 1 lets a debugger attach to its own children alone.
void explain_ptrace() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  if (scope > 0 && ::geteuid() != 0)
    std::fprintf(
        stderr,
        "wisp-launch: kernel.yama.ptrace_scope is %d: gdb may be refused. Use sudo, or let the stage be "
        "started under gdb:\n  wisp-launch debug STAGE --replace 'gdb --args ./wisp-STAGE'\n",
        scope);
}

int become_gdb(std::uint32_t pid, const std::string& script) {
  explain_ptrace();
  const std::string number = std::to_string(pid);
  ::execlp("gdb", "gdb", "-q", "-x", script.c_str(), "-p", number.c_str(), nullptr);
  std::fprintf(stderr, "wisp-launch: gdb: %s; install it, or attach by hand: gdb -p %s -x %s\n",
               std::strerror(errno), number.c_str(), script.c_str());
  return 1;
}

/// Stays at the terminal that the command now uses until it ends; hands Ctrl-C on, since the terminal's
/// signals come to this process.
int follow(std::uint32_t pid) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return 0;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  for (;;) {
    pollfd p{process.get(), POLLIN, 0};
    timespec tick{0, 100'000'000};
    if (::ppoll(&p, 1, &tick, nullptr) > 0) return 0;
    timespec none{};
    if (::sigtimedwait(&set, nullptr, &none) == SIGINT)
      ::syscall(SYS_pidfd_send_signal, process.get(), SIGINT, nullptr, 0);
  }
}

}  // namespace

int debug(const DebugCommand& command) {
  auto stage = stage_named(command.stage);
  if (!stage.ok()) return fail(stage.error());
  auto run = service::find_run(command.run, service::Purpose::kChange);
  if (!run.ok()) return fail(run.error());
  auto client = Client::connect(*run);
  if (!client.ok()) return fail(client.error());
  const bool anew = command.wait || !command.replace.empty();
  auto answer = anew ? client->call(
                           [&](proto::LaunchRequest::Builder b) {
                             auto d = b.initDebug();
                             d.setStage(command.stage);
                             d.setWait(command.wait);
                             d.setReplace(command.replace);
                           },
                           command.replace.empty() ? std::vector<int>{} : std::vector<int>{0, 1, 2})
                     : client->call([](proto::LaunchRequest::Builder b) { b.setStatus(); });
  if (!answer.ok()) return fail(answer.error());
  const std::uint32_t index = shm::index(*stage);
  const std::uint32_t pid = index < answer->pids.size() ? answer->pids[index] : 0;
  if (pid == 0) {
    std::fprintf(stderr, "wisp-launch: %s does not run just now; see `wisp-launch status`\n",
                 command.stage.c_str());
    return 1;
  }
  if (!command.replace.empty()) return follow(pid);
  if (command.wait)
    std::fprintf(stderr,
                 "%s is stopped before it attaches; `signal SIGCONT` or `continue` in gdb lets it go on\n",
                 command.stage.c_str());
  return become_gdb(pid, answer->gdb_script);
}

int exec_child(const std::string& command) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd p{service::fds::kLifeline, POLLIN, 0};
  if (::poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) return 0;
  const std::string line = "exec " + command;
  ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
  std::fprintf(stderr, "wisp-launch: /bin/sh: %s\n", std::strerror(errno));
  return 127;
}

}  // namespace wisp::launch
