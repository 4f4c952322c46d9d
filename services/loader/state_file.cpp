#include "services/loader/state_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/fd.hpp"

namespace wisp::loader {

namespace {

Error file_error(const std::string& path) {
  return io_error(path + ": " + std::strerror(errno));
}

Status write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return file_error(path);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

std::string state_folder() {
  const auto absolute = [](const char* variable) -> std::string {
    const char* const value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  std::string base = absolute("XDG_STATE_HOME");
  if (base.empty()) {
    base = absolute("HOME");
    if (base.empty()) return "";
    base += "/.local/state";
  }
  return base + "/wisp";
}

Status StateFile::update(FunctionRef<Result<std::string_view>()> make) const {
  // The next file is also the lock: whoever has it, under its name, is the only one who writes. What a killed
  // engine left is locked by nobody and written over.
  // A link there is not ours to follow, and a pipe has no reader to wait for.
  constexpr int kHow = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const auto open = [&] { return ::open(fresh_.c_str(), kHow, 0600); };
  Fd file(open());
  if (!file.valid() && errno == ENOENT) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
    if (error) return io_error(path_ + ": " + error.message());
    file.reset(open());
  }
  struct stat mine {
  }, named{};
  if (!file.valid() && errno != ELOOP && errno != ENXIO) return file_error(fresh_);
  if (!file.valid() || (::fstat(file.get(), &mine) == 0 && !S_ISREG(mine.st_mode)))
    return invalid(fresh_ + ": is there and is no regular file; remove it");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return unavailable(fresh_ + ": another engine is writing it");
    return file_error(fresh_);
  }
  if (::fstat(file.get(), &mine) != 0 || ::lstat(fresh_.c_str(), &named) != 0 ||
      mine.st_ino != named.st_ino || mine.st_dev != named.st_dev)
    return unavailable(fresh_ + ": another engine has written it");
  const Result<std::string_view> bytes = make();
  Status written = bytes.ok() ? Status() : Status(bytes.error());
  if (written.ok() && ::ftruncate(file.get(), 0) != 0) written = file_error(fresh_);
  if (written.ok()) written = write_all(file.get(), *bytes, fresh_);
  if (written.ok() && ::rename(fresh_.c_str(), path_.c_str()) != 0) written = file_error(path_);
  if (!written.ok()) ::unlink(fresh_.c_str());
  return written;
}

}  // namespace wisp::loader
