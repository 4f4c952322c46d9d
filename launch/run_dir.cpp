#include "launch/run_dir.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace wisp::launch {

namespace {

namespace fs = std::filesystem;

std::string errno_text() {
  return std::strerror(errno);
}

/// Whether `path` is a directory that only this user can enter. Errors: kNotFound, kIo, kInvalid.
Status check_private(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) {
    const bool gone = errno == ENOENT;
    const std::string text = path + ": " + errno_text();
    return gone ? not_found(text) : io_error(text);
  }
  if (!S_ISDIR(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 077) != 0)
    return invalid(path +
                   " is not a directory that belongs to this user alone (mode 0700); remove it, or set " +
                   "XDG_RUNTIME_DIR to a directory of your own");
  return {};
}

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Takes the lock of a run for good. The kernel frees it with the last descriptor, however its holder ends.
bool try_lock(int fd) {
  struct flock lock = whole_file();
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool is_locked(const std::string& lock_file) {
  Fd fd(::open(lock_file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return false;
  struct flock lock = whole_file();
  return ::fcntl(fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/// Makes the base directory and locks it against other launchers that sweep, create or remove.
Result<Fd> lock_base(const std::string& base) {
  for (;;) {
    if (::mkdir(base.c_str(), 0700) != 0 && errno != EEXIST)
      return io_error("making " + base + ": " + errno_text());
    if (auto mine = check_private(base); !mine.ok()) {
      if (mine.error().code == ErrorCode::kNotFound) continue;
      return std::move(mine).error();
    }
    Fd fd(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid()) {
      if (errno == ENOENT) continue;
      return io_error(base + ": " + errno_text());
    }
    while (::flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
    // Whoever held the lock before may have removed the directory as the last to leave.
    struct stat held {};
    struct stat named {};
    if (::fstat(fd.get(), &held) == 0 && ::stat(base.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev)
      return fd;
  }
}

void sweep(const std::string& base) {
  std::error_code ignored;
  std::vector<fs::path> dead;
  for (const auto& entry : fs::directory_iterator(base, ignored))
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored) && !is_locked(entry.path() / "lock"))
      dead.push_back(entry.path());
  for (const fs::path& p : dead) fs::remove_all(p, ignored);
}

}  // namespace

std::string run_base() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code ignored;
  if (runtime != nullptr && runtime[0] == '/' && fs::is_directory(runtime, ignored))
    return std::string(runtime) + "/wisp";
  return "/tmp/wisp-" + std::to_string(::geteuid());
}

Result<RunDir> RunDir::create(std::uint64_t run_id) {
  const std::string base = run_base();
  WISP_ASSIGN(const Fd guard, lock_base(base));
  sweep(base);
  std::array<char, 17> name{};
  std::snprintf(name.data(), name.size(), "%016llx", static_cast<unsigned long long>(run_id));
  RunDir dir;
  dir.path_ = base + "/" + name.data();
  if (::mkdir(dir.path_.c_str(), 0700) != 0) return io_error("making " + dir.path_ + ": " + errno_text());
  const std::string lock = dir.path_ + "/lock";
  dir.lock_.reset(::open(lock.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!dir.lock_.valid() || !try_lock(dir.lock_.get()))
    return io_error("locking " + lock + ": " + errno_text());
  if (::mkdir((dir.path_ + "/log").c_str(), 0700) != 0)
    return io_error("making " + dir.path_ + "/log: " + errno_text());
  return dir;
}

RunDir::RunDir(RunDir&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

RunDir& RunDir::operator=(RunDir&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
    lock_ = std::move(other.lock_);
  }
  return *this;
}

void RunDir::remove() {
  if (path_.empty()) return;
  const std::string base = fs::path(path_).parent_path().string();
  auto guard = lock_base(base);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  path_.clear();
  lock_.reset();
  ::rmdir(base.c_str());  // only where no other run is left
}

std::vector<std::string> live_runs() {
  std::vector<std::string> live;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run_base(), ignored))
    if (is_locked(entry.path() / "lock")) live.push_back(entry.path().string());
  return live;
}

Result<std::string> find_run(const std::string& wanted) {
  if (!wanted.empty()) {
    const std::string path = wanted.find('/') != std::string::npos ? wanted : run_base() + "/" + wanted;
    if (!is_locked(path + "/lock")) return not_found("no WISP runs in " + path);
    return path;
  }
  const auto live = live_runs();
  if (live.empty()) return not_found("no WISP of this user is running; `wisp serve MODEL` starts one");
  if (live.size() == 1) return live.front();
  std::string text = "several are running; choose one with --run:";
  for (const std::string& path : live) text += "\n  " + path;
  return invalid(text);
}

}  // namespace wisp::launch
