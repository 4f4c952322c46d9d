#include "model/output_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace wisp::model {
namespace {

/// The drive is set to work on so much at a time.
constexpr std::uint64_t kWritebackBytes = std::uint64_t{8} << 20;

}  // namespace

Error os_error(const std::string& path, const char* what, int e) {
  const std::string text = path + ": " + what + ": " + std::strerror(e);
  return e == ENOSPC || e == EDQUOT ? exhausted(text) : io_error(text);
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile f;
  f.path_ = path;
  f.fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!f.fd_.valid()) return os_error(path, "create");
  return f;
}

Status OutputFile::lock() {
  return ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 ? Status{} : os_error(path_, "lock");
}

Status OutputFile::write(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(path_, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    written_ += static_cast<std::uint64_t>(n);
  }
  // The drive begins at once, so that it works while the next expert is read and fsync finds little left. A
  // hint: where a file system lacks it, fsync does all.
  if (written_ - started_ < kWritebackBytes) return {};
  static_cast<void>(::sync_file_range(fd_.get(), static_cast<off_t>(started_),
                                      static_cast<off_t>(written_ - started_), SYNC_FILE_RANGE_WRITE));
  started_ = written_;
  return {};
}

Status OutputFile::write(std::string_view text) {
  return write(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

Status OutputFile::close_durably() {
  if (::fsync(fd_.get()) != 0) return os_error(path_, "fsync");
  if (::close(fd_.release()) != 0) return os_error(path_, "close");
  return {};
}

}  // namespace wisp::model
