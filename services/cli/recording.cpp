#include "services/cli/recording.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fd.hpp"
#include "services/cli/output_path.hpp"
#include "services/loader/trace_recorder.hpp"

namespace wisp::cli {

Result<Recording> Recording::prepare(const std::string& option, const std::string& file,
                                     const std::vector<std::string>& read) {
  Recording r;
  if (file.empty()) return r;
  WISP_ASSIGN(r.path_, output_path(option, file, read));
  const auto failed = [&] { return io_error(option + " " + file + ": " + std::strerror(errno)); };
  struct stat s {};
  const bool there = ::stat(r.path_.c_str(), &s) == 0;
  if (there && S_ISFIFO(s.st_mode))
    return invalid(option + " " + file +
                   ": is a pipe, and a loader that is started again opens the trace again; name a file");
  if (there && ::access(r.path_.c_str(), W_OK) != 0) return failed();
  const std::string block(4096, '\n');  // a full drive has no room for one
  if (there && !S_ISREG(s.st_mode)) {
    const Fd fd(::open(r.path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.valid() || ::write(fd.get(), block.data(), block.size()) != static_cast<ssize_t>(block.size()))
      return failed();
    return r;
  }
  const std::string beside = loader::TraceRecorder::unfinished(r.path_);
  const Fd fd(
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (!fd.valid()) return failed();
  r.unfinished_ = beside;
  if (::write(fd.get(), block.data(), block.size()) != static_cast<ssize_t>(block.size()) ||
      ::ftruncate(fd.get(), 0) != 0)
    return failed();
  return r;
}

Recording::~Recording() {
  if (!unfinished_.empty()) ::unlink(unfinished_.c_str());
}

}  // namespace wisp::cli
