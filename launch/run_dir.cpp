#include "launch/run_dir.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "service/live_runs.hpp"

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
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored) && !service::is_live(entry.path()))
      dead.push_back(entry.path());
  for (const fs::path& p : dead) fs::remove_all(p, ignored);
}

}  // namespace

Result<RunDir> RunDir::create(std::uint64_t run_id) {
  const std::string base = service::run_base();
  WISP_ASSIGN(const Fd guard, lock_base(base));
  sweep(base);
  std::array<char, 17> name{};
  std::snprintf(name.data(), name.size(), "%016llx", static_cast<unsigned long long>(run_id));
  RunDir dir;
  dir.path_ = base + "/" + name.data();
  if (::mkdir(dir.path_.c_str(), 0700) != 0) return io_error("making " + dir.path_ + ": " + errno_text());
  WISP_ASSIGN(dir.lock_, service::mark_live(dir.path_));
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

}  // namespace wisp::launch
