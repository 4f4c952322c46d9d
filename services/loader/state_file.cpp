#include "services/loader/state_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

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

Status replace_file(const std::string& path, std::string_view bytes) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return io_error(path + ": " + error.message());
  // A name of its own for each process: two engines must not write into one file.
  const std::string fresh = path + "." + std::to_string(::getpid()) + ".new";
  const Fd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return file_error(fresh);
  Status written = write_all(file.get(), bytes, fresh);
  if (written.ok() && ::rename(fresh.c_str(), path.c_str()) != 0) written = file_error(path);
  if (!written.ok()) ::unlink(fresh.c_str());
  return written;
}

}  // namespace wisp::loader
