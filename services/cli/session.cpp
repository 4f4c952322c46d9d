#include "services/cli/session.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "proto/codec.hpp"

extern char** environ;

namespace wisp::cli {

namespace {

// The launcher's ends of the pipes, at fixed numbers in the child.
constexpr int kPlanFd = 3;
constexpr int kAnnounceFd = 4;
constexpr int kLifelineFd = 5;
constexpr auto kLongestEnd = std::chrono::seconds(10);

/// A copy above the fixed numbers, so that no dup2 in the child overwrites another one's source.
Fd lifted(const Fd& fd) {
  return Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kLifelineFd + 1));
}

struct Pipe {
  Fd read;
  Fd write;
};
Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error(std::string("pipe: ") + std::strerror(errno));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

/// The plan as a Cap'n Proto stream in a memory file.
Result<Fd> plan_file(const plan::RunPlan& plan) {
  capnp::MallocMessageBuilder message;
  proto::write_plan(plan, message.initRoot<proto::RunPlan>());
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  Fd fd(::memfd_create("wisp.plan", MFD_CLOEXEC));
  if (!fd.valid() || ::pwrite(fd.get(), bytes.begin(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return io_error(std::string("writing the plan: ") + std::strerror(errno));
  return fd;
}

std::string launcher_beside_us() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string{} : (self.parent_path() / "wisp-launch").string();
}

std::string end_of(int status) {
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

/// An event as the launcher words it in JSON, or a line of text.
struct LauncherEvent {
  std::string text;
  bool fatal = false;
};
LauncherEvent parse_event(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return {line};
  const auto text = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string{};
  };
  const auto number = [&](const char* key) {
    return json.contains(key) && json[key].is_number_integer() ? json[key].get<int>() : 0;
  };
  const std::string event = text("event");
  if (event == "stage_died") {
    const bool again =
        json.contains("restarting") && json["restarting"].is_boolean() && json["restarting"].get<bool>();
    const std::string how = number("signal") != 0 ? "signal " + std::to_string(number("signal"))
                                                  : "status " + std::to_string(number("status"));
    return {text("stage") + " stopped (" + how + ")" + (again ? ", restarting" : "")};
  }
  if (event == "stage_ready") return {text("stage") + " is back"};
  std::string words = text("text");
  if (words.empty()) words = text("error");
  return {words, event == "failed" || !text("error").empty()};
}

}  // namespace

Result<ReadyLine> parse_ready_line(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("run_dir") || !json.contains("unix_socket"))
    return invalid("no ready line: " + line);
  const auto text = [&](const char* key) {
    return json[key].is_string() ? json[key].get<std::string>() : std::string{};
  };
  ReadyLine ready{text("run_dir"), text("unix_socket"), 0};
  if (json.contains("port") && json["port"].is_number_unsigned())
    ready.port = json["port"].get<std::uint32_t>();
  return ready;
}

Result<std::unique_ptr<Session>> Session::start(const plan::RunPlan& plan, const Interrupts& interrupts,
                                                Notice notice, const std::string& launcher) {
  std::unique_ptr<Session> session(new Session(std::move(notice)));
  const std::string path = launcher.empty() ? launcher_beside_us() : launcher;
  if (::access(path.c_str(), X_OK) != 0)
    return not_found("the launcher is missing: " + path + " (build or install WISP as a whole)");
  WISP_TRY(session->spawn(plan, path));
  WISP_TRY(session->await_ready(interrupts));
  return session;
}

Status Session::spawn(const plan::RunPlan& plan, const std::string& launcher) {
  WISP_ASSIGN(const Fd plan_fd, plan_file(plan));
  WISP_ASSIGN(Pipe announce, make_pipe());
  WISP_ASSIGN(Pipe lifeline, make_pipe());
  const Fd sources[3] = {lifted(plan_fd), lifted(announce.write), lifted(lifeline.read)};

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  // stdout carries the answer alone: whatever the pipeline prints goes to stderr.
  posix_spawn_file_actions_adddup2(&files, 2, 1);
  const int targets[3] = {kPlanFd, kAnnounceFd, kLifelineFd};
  for (int i = 0; i < 3; ++i) posix_spawn_file_actions_adddup2(&files, sources[i].get(), targets[i]);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (int s : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&defaults, s);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  // A group of its own: Ctrl-C at the terminal is ours to handle.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<std::string> args{launcher,        "run",
                                "--plan-fd",     std::to_string(kPlanFd),
                                "--announce-fd", std::to_string(kAnnounceFd),
                                "--lifeline-fd", std::to_string(kLifelineFd)};
  std::vector<char*> argv;
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  const int rc = ::posix_spawn(&pid_, launcher.c_str(), &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (rc != 0) {
    pid_ = 0;
    return io_error("starting " + launcher + ": " + std::strerror(rc));
  }
  Interrupts::kill_with_us(pid_);
  announce_ = std::move(announce.read);
  lifeline_ = std::move(lifeline.write);
  ::fcntl(announce_.get(), F_SETFL, O_NONBLOCK);
  return {};
}

Status Session::await_ready(const Interrupts& interrupts) {
  while (!is_ready_) {
    pollfd fds[2] = {{announce_.get(), POLLIN, 0}, {interrupts.fd(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR)
      return io_error(std::string("poll: ") + std::strerror(errno));
    if (interrupts.came()) return interrupted("interrupted while the model was loading");
    if (fds[0].revents != 0 && !read_lines() && !is_ready_) {
      reap(true);
      return unavailable("the pipeline did not start: " +
                         (last_words_.empty() ? "wisp-launch " + end_of(status_) : last_words_));
    }
  }
  return {};
}

bool Session::read_lines() {
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(announce_.get(), buffer, sizeof buffer)) > 0) {
    partial_.append(buffer, static_cast<std::size_t>(n));
    for (auto end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
      const std::string line = partial_.substr(0, end);
      partial_.erase(0, end + 1);
      take_line(line);
    }
  }
  return n < 0 && (errno == EAGAIN || errno == EINTR);
}

void Session::take_line(const std::string& line) {
  if (!is_ready_) {
    if (auto ready = parse_ready_line(line); ready.ok()) {
      ready_ = std::move(*ready);
      is_ready_ = true;
      return;
    }
  }
  const LauncherEvent event = parse_event(line);
  if (event.text.empty()) return;
  last_words_ = event.text;
  // What made the start fail is the error that start() returns.
  if (notice_ && (is_ready_ || !event.fatal)) notice_(event.text);
}

Watch Session::events() {
  return {[this] { return announce_.get(); },
          [this] {
            if (!read_lines()) announce_.reset();
            return true;
          }};
}

bool Session::reap(bool block) {
  if (pid_ == 0) return true;
  pid_t got;
  do got = ::waitpid(pid_, &status_, block ? 0 : WNOHANG);
  while (got < 0 && errno == EINTR);
  if (got == 0) return false;
  pid_ = 0;
  Interrupts::kill_with_us(0);
  return true;
}

Status Session::check() {
  if (announce_.valid() && !read_lines()) announce_.reset();
  if (!reap(false)) return {};
  return unavailable("the pipeline is gone: wisp-launch " + end_of(status_) +
                     (last_words_.empty() ? "" : " after \"" + last_words_ + "\""));
}

void Session::end() {
  lifeline_.reset();
  const auto deadline = std::chrono::steady_clock::now() + kLongestEnd;
  while (!reap(false)) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(pid_, SIGKILL);
      reap(true);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Session::~Session() {
  end();
}

}  // namespace wisp::cli
