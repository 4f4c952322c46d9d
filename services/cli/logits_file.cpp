#include "services/cli/logits_file.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "services/cli/output_path.hpp"

namespace wisp::cli {

namespace fs = std::filesystem;

Result<LogitsFile> LogitsFile::create(const std::string& file, const std::vector<std::string>& read) {
  LogitsFile l;
  // Followed through links: the rows replace a regular file, never a device, a link's name or a folder.
  std::error_code error;
  WISP_ASSIGN(l.file_, output_path("--logits", file, read));
  if (fs::exists(l.file_, error) && !fs::is_regular_file(l.file_, error))
    return invalid("--logits " + file + ": is there and is no regular file; name a file to be written");
  std::string folder = l.file_ + ".XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    return io_error("--logits " + file + ": no folder can be made beside it (" + std::strerror(errno) + ")");
  l.folder_ = std::move(folder);
  return l;
}

LogitsFile::LogitsFile(LogitsFile&& other) noexcept
    : file_(std::move(other.file_)), folder_(std::exchange(other.folder_, {})) {}

LogitsFile& LogitsFile::operator=(LogitsFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(folder_, other.folder_);
  return *this;
}

LogitsFile::~LogitsFile() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

Status LogitsFile::keep(const std::string& request) {
  std::error_code error;
  const fs::path rows = fs::path(folder_) / request;
  if (request.empty() || !fs::is_regular_file(rows, error))
    return not_found("no logits were written for request " + request);
  fs::rename(rows, file_, error);
  if (error) return io_error("--logits " + file_ + ": " + error.message());
  return {};
}

Result<LogitsFolder> logits_folder(const std::string& folder, const std::vector<std::string>& read) {
  std::error_code error;
  const fs::path absolute = fs::absolute(folder, error);
  if (error) return io_error("--logits " + folder + ": " + error.message());
  fs::path path = fs::weakly_canonical(absolute, error);
  if (error) path = absolute;  // what it names is said by whoever makes it
  if (!path.has_filename()) path = path.parent_path();
  WISP_TRY(spares("--logits " + folder, path.string(), read));
  if (fs::exists(path, error) && !fs::is_directory(path, error))
    return invalid("--logits " + folder + ": is there and is no folder; name an empty one");
  fs::create_directory(path, error);
  if (error) return io_error("--logits " + folder + ": cannot be made (" + error.message() + ")");
  Fd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid()) return io_error("--logits " + folder + ": " + std::strerror(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return unavailable("--logits " + folder + ": another server writes there; name another folder");
  const bool empty = fs::is_empty(path, error);
  if (error) return io_error("--logits " + folder + ": cannot be read (" + error.message() + ")");
  if (!empty)
    return invalid("--logits " + folder +
                   ": holds files already, and those of requests would mix with them; name an empty folder");
  return LogitsFolder{path.string(), std::move(lock)};
}

}  // namespace wisp::cli
