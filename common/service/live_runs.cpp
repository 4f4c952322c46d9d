#include "service/live_runs.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace wisp::service {

namespace fs = std::filesystem;

namespace {
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}
std::string fallback_base() {
  return "/tmp/wisp-" + std::to_string(::geteuid());
}
}  // namespace

std::string run_base() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code ignored;
  if (runtime != nullptr && runtime[0] == '/' && fs::is_directory(runtime, ignored))
    return std::string(runtime) + "/wisp";
  return fallback_base();
}

Result<Fd> mark_live(const std::string& dir) {
  const std::string path = dir + "/lock";
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  struct flock lock = whole_file();
  if (!fd.valid() || ::fcntl(fd.get(), F_OFD_SETLK, &lock) != 0)
    return io_error("locking " + path + ": " + std::strerror(errno));
  return fd;
}

bool is_live(const std::string& dir) {
  const Fd fd(::open((dir + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return false;
  struct flock lock = whole_file();
  return ::fcntl(fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::vector<std::string> live_runs(const std::string& base) {
  std::vector<std::string> live;
  struct stat st {};
  // In another user's directory anything may stand.
  if (::stat(base.c_str(), &st) != 0 || st.st_uid != ::geteuid()) return live;
  std::error_code error;
  for (fs::directory_iterator it(base, error), end; !error && it != end; it.increment(error))
    if (is_live(it->path())) live.push_back(it->path().string());
  return live;
}

Result<std::string> find_run(const std::string& wanted, Purpose purpose) {
  if (!wanted.empty()) {
    const std::string path = wanted.find('/') != std::string::npos ? wanted : run_base() + "/" + wanted;
    if (!is_live(path)) return not_found("no WISP runs in " + path);
    return path;
  }
  std::vector<std::string> live = live_runs(run_base());
  // It may have been started where XDG_RUNTIME_DIR was not set: by cron, by su.
  const bool elsewhere = live.empty() && run_base() != fallback_base();
  if (live.empty()) live = live_runs(fallback_base());
  if (live.empty())
    return not_found("no WISP of this user is running (none in " + run_base() +
                     "); `wisp serve MODEL` starts one");
  const bool foreign = elsewhere && purpose == Purpose::kChange;
  if (live.size() == 1 && !foreign) return live.front();
  std::string text = foreign ? "none is running in " + run_base() + "; name one of another base with --run:"
                             : "several are running; choose one with --run:";
  for (const std::string& path : live) text += "\n  " + path;
  return invalid(text);
}

}  // namespace wisp::service
