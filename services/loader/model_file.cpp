#include "services/loader/model_file.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace wisp::loader {

namespace {
constexpr std::size_t kBlock = 4096;

/// Whether a direct read of the unit that all our reads are multiples of goes through.
bool direct_reads_work(int fd) {
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kBlock, kBlock), &std::free);
  if (block == nullptr) return false;
  ssize_t n;
  do n = ::pread(fd, block.get(), kBlock, 0);
  while (n < 0 && errno == EINTR);
  return n >= 0 || errno != EINVAL;  // any other error is the drive's, and shows when the file is read
}
}  // namespace

Result<ModelFile> open_model_file(const std::string& path) {
  ModelFile file{path, Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT)), true, 0};
  int refused = errno;
  if (file.fd.valid() && !direct_reads_work(file.fd.get())) {
    file.fd.reset();
    refused = EINVAL;
  }
  if (file.fd.valid()) return file;
  if (refused == EINVAL || refused == EOPNOTSUPP) {
    file.direct = false;
    file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.fd.valid()) {
      spdlog::warn(
          "{}: this file system takes no direct reads (O_DIRECT): reads are buffered and dropped from the "
          "page cache afterwards",
          path);
      return file;
    }
    refused = errno;
  }
  Error e = io_error(path + ": " + std::strerror(refused) + "; check the folder with `wisp verify`");
  if (refused == ENOENT) e.code = ErrorCode::kNotFound;
  return e;
}

}  // namespace wisp::loader
