#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace wisp::cli {

/// `--trace FILE` (`--out` of trace record): the loader writes under another name beside it, and gives it
/// this one with the first touch that it records. So a run that does not come to that leaves an earlier
/// recording as it was.
class Recording {
 public:
  Recording() = default;
  /// Says what cannot be recorded before anything starts; touches nothing but the name beside the file.
  /// `read`: folders that hold no recording (output_path). Errors: kInvalid (a pipe, a folder, a file of the
  /// model), kIo.
  static Result<Recording> prepare(const std::string& option, const std::string& file,
                                   const std::vector<std::string>& read);
  Recording(Recording&& other) noexcept
      : path_(std::move(other.path_)), unfinished_(std::exchange(other.unfinished_, {})) {}
  Recording& operator=(Recording&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(unfinished_, other.unfinished_);
    return *this;
  }
  /// Removes what nothing was recorded to.
  ~Recording();

  /// For the loader, which may run elsewhere: absolute. Empty without --trace.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string unfinished_;  ///< "" where the file is none that can be replaced, such as /dev/null
};

}  // namespace wisp::cli
