#include "launch/spawn.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace wisp::launch {

namespace {

/// Above every fixed number of fds.hpp: a source that lies there cannot be overwritten by an earlier dup2.
constexpr int kSafeNumber = 200;

/// posix_spawn's two objects, destroyed together.
class SpawnState {
 public:
  SpawnState() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~SpawnState() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }
  SpawnState(const SpawnState&) = delete;
  SpawnState& operator=(const SpawnState&) = delete;

  /// Gives `fd` the number `number` in the child. Errors: kIo.
  Status inherit(int fd, int number) {
    Fd moved(::fcntl(fd, F_DUPFD_CLOEXEC, kSafeNumber));
    if (!moved.valid()) return io_error("descriptor " + std::to_string(number) + ": " + std::strerror(errno));
    posix_spawn_file_actions_adddup2(&actions_, moved.get(), number);
    moved_.push_back(std::move(moved));
    return {};
  }
  void set_attributes(bool new_session) {
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    // Ctrl-C at the terminal is for the launcher; it stops the stages.
    posix_spawnattr_setpgroup(&attributes_, 0);
    const int group = new_session ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP;
    posix_spawnattr_setflags(&attributes_,
                             static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
  }
  int run(pid_t& pid, const std::string& path, std::vector<std::string>& argv) {
    std::vector<char*> pointers;
    for (std::string& a : argv) pointers.push_back(a.data());
    pointers.push_back(nullptr);
    return ::posix_spawn(&pid, path.c_str(), &actions_, &attributes_, pointers.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
  std::vector<Fd> moved_;
};

}  // namespace

Status allow_descriptors() {
  // A stage's grants, moved out of the way, beside everything that the launcher itself holds.
  constexpr rlim_t kNeeded = kSafeNumber + 120;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kNeeded) return {};
  limit.rlim_cur = std::min<rlim_t>(kNeeded, limit.rlim_max);
  if (limit.rlim_cur >= kNeeded && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return unavailable("only " + std::to_string(limit.rlim_max) + " files may be open at a time, " +
                     std::to_string(kNeeded) + " are needed; raise the limit (ulimit -Hn)");
}

void Child::signal(int number) const {
  if (pidfd.valid()) ::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0);
}

Result<Child> spawn(const SpawnRequest& request) {
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return io_error(std::string("/dev/null: ") + std::strerror(errno));
  SpawnState state;
  for (int i = 0; i < 3; ++i) {
    const int given = request.standard[static_cast<std::size_t>(i)];
    WISP_TRY(state.inherit(given >= 0 ? given : (i == 0 ? null.get() : STDERR_FILENO), i));
  }
  for (const Grant& g : request.grants) WISP_TRY(state.inherit(g.fd, g.number));
  state.set_attributes(request.new_session);
  std::vector<std::string> argv{request.path};
  argv.insert(argv.end(), request.arguments.begin(), request.arguments.end());
  Child child;
  const int rc = state.run(child.pid, request.path, argv);
  if (rc != 0) {
    const std::string text = "starting " + request.path + ": " + std::strerror(rc);
    return rc == ENOENT || rc == EACCES || rc == ENOEXEC ? not_found(text) : io_error(text);
  }
  // The child is not reaped yet, so its number cannot have been given to another.
  child.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  if (!child.pidfd.valid()) {
    const std::string text = std::string("pidfd_open: ") + std::strerror(errno);
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    return io_error(text + "; Linux 5.3 or later is needed");
  }
  return child;
}

int reap(Child& child) {
  int status = 0;
  pid_t r;
  do r = ::waitpid(child.pid, &status, 0);
  while (r < 0 && errno == EINTR);
  child = Child();
  return status;
}

void adjust_oom_score(pid_t pid, shm::StageId stage) {
  int own = 0;
  std::ifstream("/proc/self/oom_score_adj") >> own;
  int extra = 100;
  if (stage == shm::StageId::kRouter) extra = 200;
  if (stage == shm::StageId::kLoader) extra = 300;
  if (stage == shm::StageId::kCompute) extra = 400;
  std::ofstream("/proc/" + std::to_string(pid) + "/oom_score_adj") << std::min(1000, own + extra);
}

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error(std::string("pipe: ") + std::strerror(errno));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

Result<SocketPair> make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return io_error(std::string("socketpair: ") + std::strerror(errno));
  SocketPair pair{Fd(ends[0]), Fd(ends[1])};
  // A stopped stage reads nothing: the launcher must not wait for it.
  ::fcntl(pair.ours.get(), F_SETFL, O_NONBLOCK);
  return pair;
}

}  // namespace wisp::launch
