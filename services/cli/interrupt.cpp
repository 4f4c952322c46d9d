#include "services/cli/interrupt.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

namespace wisp::cli {

namespace {

// What a signal handler can reach. Lock-free atomics are async-signal-safe.
std::atomic<int> g_count{0};
std::atomic<pid_t> g_launcher{0};
std::atomic<int> g_write_end{-1};
int g_read_end = -1;

void on_signal(int) {
  const int saved = errno;
  if (g_count.fetch_add(1) >= 1) {
    const pid_t launcher = g_launcher.load();
    if (launcher > 0) ::kill(launcher, SIGKILL);
    ::_exit(130);
  }
  const char byte = 1;
  [[maybe_unused]] const auto n = ::write(g_write_end.load(), &byte, 1);
  errno = saved;
}

}  // namespace

Result<Interrupts> Interrupts::install() {
  if (g_read_end < 0) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
      return exhausted(std::string("a pipe for signals: ") + std::strerror(errno) +
                       "; raise the limit of open files (ulimit -n 4096)");
    g_read_end = ends[0];
    g_write_end.store(ends[1]);
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // A closed stdout or socket is an error to report, not a death.
  ::signal(SIGPIPE, SIG_IGN);
  return Interrupts();
}

int Interrupts::fd() const {
  return g_read_end;
}
bool Interrupts::came() const {
  return g_count.load() > 0;
}

void Interrupts::rearm() {
  char bytes[16];
  while (::read(g_read_end, bytes, sizeof bytes) > 0) {
  }
  g_count.store(0);
}

void Interrupts::kill_with_us(pid_t launcher) {
  g_launcher.store(launcher);
}

}  // namespace wisp::cli
