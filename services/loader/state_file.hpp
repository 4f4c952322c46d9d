#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "base/function_ref.hpp"
#include "base/result.hpp"

/// Small files that outlive a run.
namespace wisp::loader {

/// $XDG_STATE_HOME/wisp, by default ~/.local/state/wisp. Empty where neither variable is an absolute path.
std::string state_folder();

/// A small file that several engines may update.
class StateFile {
 public:
  StateFile() = default;
  explicit StateFile(std::string path) : path_(std::move(path)), fresh_(path_ + ".new") {}
  const std::string& path() const { return path_; }

  /// Replaces it by what `make` says, which may read the old file, or not at all where that fails: no other
  /// engine updates it meanwhile. By rename, so that a reader finds the old file or the new one; makes the
  /// folder if need be. Not flushed to the drive, which nobody shall wait for: whoever reads it must know a
  /// torn file. Allocates nothing where nothing is wrong. Errors: kUnavailable where another engine is at it,
  /// to be tried again later; kInvalid where something else than a file has the next one's name; kIo names
  /// the file. The old file is there then.
  Status update(FunctionRef<Result<std::string_view>()> make) const;

 private:
  std::string path_, fresh_;
};

}  // namespace wisp::loader
