#include "services/gateway/text/template_helper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#ifndef WISP_PYTHON
#define WISP_PYTHON "/usr/bin/python3"
#endif

namespace wisp::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxMessage = std::size_t{64} << 20;  // the helper refuses more

std::string cause(int error) {
  return std::strerror(error);
}

/// posix_spawn's two option objects, destroyed together.
struct SpawnSetup {
  posix_spawn_file_actions_t files{};
  posix_spawnattr_t attributes{};

  SpawnSetup() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }

  /// Only the socket as 0 and stderr survive; signals as in a fresh process; a group of its own, so that a
  /// Ctrl-C at the terminal reaches the gateway alone.
  void prepare(int socket) {
    posix_spawn_file_actions_adddup2(&files, socket, 0);
    posix_spawn_file_actions_adddup2(&files, 2, 1);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                             POSIX_SPAWN_SETPGROUP));
  }
};

std::string little_endian(std::size_t size) {
  std::string out(4, '\0');
  for (unsigned i = 0; i < 4; ++i) out[i] = static_cast<char>(static_cast<std::uint8_t>(size >> (8 * i)));
  return out;
}

std::size_t from_little_endian(std::string_view bytes) {
  std::size_t size = 0;
  for (unsigned i = 0; i < 4; ++i) size |= std::size_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
  return size;
}

}  // namespace

TemplateHelper::~TemplateHelper() {
  stop();
}

/// Ends and reaps the helper; returns its wait status, or 0 when none ran or another part of this process
/// reaped it.
int TemplateHelper::stop() {
  socket_.reset();
  if (pid_ < 0) return 0;
  int status = 0;
  pid_t reaped = 0;
  ::kill(pid_, SIGKILL);
  do {
    reaped = ::waitpid(pid_, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  pid_ = -1;
  return reaped > 0 ? status : 0;
}

bool TemplateHelper::alive() {
  if (pid_ < 0) return false;
  siginfo_t info{};
  // WNOWAIT leaves the body for stop(), which wants its status.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return false;
  return info.si_pid == 0;
}

Result<std::string> TemplateHelper::find_script() const {
  if (!options_.script.empty()) return options_.script;
  std::error_code error;
  const std::filesystem::path exe = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return io_error("template helper: /proc/self/exe: " + error.message());
  const std::filesystem::path folder = exe.parent_path();
  const std::array candidates{folder.parent_path() / "libexec" / "wisp" / "template_helper.py",
                              folder / "template_helper.py"};
  for (const auto& candidate : candidates) {
    if (std::filesystem::exists(candidate, error)) return candidate.string();
  }
  return not_found("template helper: neither " + candidates[0].string() + " nor " + candidates[1].string() +
                   " exists; install WISP again");
}

Status TemplateHelper::start() {
  if (alive()) return {};
  stop();
  WISP_ASSIGN(std::string script, find_script());
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return io_error("template helper: socketpair: " + cause(errno));
  }
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  if (::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0)
    return io_error("template helper: fcntl: " + cause(errno));

  std::string python = options_.python.empty() ? std::string(WISP_PYTHON) : options_.python;
  std::string isolated = "-I";  // no PYTHON* variables, no user site; the distribution's packages stay
  std::string parent = std::to_string(::getpid());
  std::string memory = std::to_string(options_.limits.memory_mib);
  std::string cpu = std::to_string(options_.limits.cpu_seconds);
  std::array<char*, 7> argv{python.data(), isolated.data(), script.data(), parent.data(),
                            memory.data(), cpu.data(),      nullptr};
  std::string locale = "LC_ALL=C.UTF-8";
  std::array<char*, 2> environment{locale.data(), nullptr};

  SpawnSetup setup;
  setup.prepare(theirs.get());
  pid_t pid = -1;
  const int rc =
      ::posix_spawn(&pid, python.c_str(), &setup.files, &setup.attributes, argv.data(), environment.data());
  if (rc != 0) {
    return io_error("template helper: cannot run " + python + ": " + cause(rc) +
                    "; configure with -DWISP_PYTHON=PATH to use another python3");
  }
  pid_ = pid;
  socket_ = std::move(ours);
  return {};
}

/// Waits until the socket is ready. After a pause of this process (a debugger) a ready socket still counts,
/// because the deadline matters only when poll has found nothing.
bool TemplateHelper::wait_for(short events, Deadline deadline, Outcome& failure) const {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{socket_.get(), events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    failure = ready == 0 ? Outcome::kTimedOut : Outcome::kDied;
    return false;
  }
}

bool TemplateHelper::send_all(std::string_view bytes, Deadline deadline, Outcome& failure) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!wait_for(POLLOUT, deadline, failure)) return false;
    } else {
      failure = Outcome::kDied;
      return false;
    }
  }
  return true;
}

bool TemplateHelper::receive(std::size_t size, std::string& bytes, Deadline deadline, Outcome& failure) {
  bytes.resize(size);
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::recv(socket_.get(), bytes.data() + done, size - done, 0);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!wait_for(POLLIN, deadline, failure)) return false;
    } else {
      failure = Outcome::kDied;
      return false;
    }
  }
  return true;
}

TemplateHelper::Outcome TemplateHelper::exchange(std::string_view request, std::string& reply) {
  const Deadline deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.limits.wall_ms);
  Outcome failure = Outcome::kDied;
  std::string head;
  if (!send_all(little_endian(request.size()), deadline, failure)) return failure;
  if (!send_all(request, deadline, failure)) return failure;
  if (!receive(4, head, deadline, failure)) return failure;
  const std::size_t size = from_little_endian(head);
  if (size > kMaxMessage) return Outcome::kDied;
  return receive(size, reply, deadline, failure) ? Outcome::kAnswered : failure;
}

Result<std::string> TemplateHelper::render(const std::string& source, const Json& context, bool* type_error) {
  if (type_error != nullptr) *type_error = false;
  Json message = Json::object();
  message["template"] = source;
  message["context"] = context;
  const std::string request = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (request.size() > kMaxMessage) {
    return invalid("chat template: a request of " + std::to_string(request.size()) + " bytes, at most " +
                   std::to_string(kMaxMessage) + " can be rendered");
  }
  std::string reply;
  for (int attempt = 0;; ++attempt) {
    WISP_TRY(start());
    const Outcome outcome = exchange(request, reply);
    if (outcome == Outcome::kAnswered) break;
    if (outcome == Outcome::kTimedOut) {
      stop();
      return exhausted("chat template: no result after " + std::to_string(options_.limits.wall_ms) + " ms");
    }
    const int status = stop();
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) {
      return exhausted("chat template: took more than " + std::to_string(options_.limits.cpu_seconds) +
                       " s of processor time");
    }
    if (attempt > 0) {
      return unavailable("template helper: died twice under one request (wait status " +
                         std::to_string(status) + "); its messages are on standard error");
    }
  }
  const Json answer = Json::parse(reply, nullptr, false);
  if (!answer.is_object()) return unavailable("template helper: answered with something that is not JSON");
  const auto rendered = answer.find("text");
  if (rendered != answer.end() && rendered->is_string()) return rendered->get<std::string>();
  const auto field = [&answer](const char* name) {
    const auto it = answer.find(name);
    return it != answer.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  const std::string text = field("error");
  const std::string kind = field("kind");
  if (kind == "memory") return exhausted("chat template: " + text);
  if (type_error != nullptr) *type_error = kind == "type";
  return invalid("chat template: " + text);
}

}  // namespace wisp::text
