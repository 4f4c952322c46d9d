#pragma once
#include <string>
#include <string_view>

#include "base/result.hpp"

/// Small files that outlive a run.
namespace wisp::loader {

/// $XDG_STATE_HOME/wisp, by default ~/.local/state/wisp. Empty where neither variable is an absolute path.
std::string state_folder();

/// A file that is replaced by rename, so that a reader finds the old one or the new one.
class StateFile {
 public:
  StateFile() = default;
  explicit StateFile(std::string path);
  const std::string& path() const { return path_; }

  /// Makes the folder if need be. Not flushed to the drive, which nobody shall wait for: whoever reads it
  /// must know a torn file. Allocates nothing where nothing is wrong. Errors: kIo names the file; the old one
  /// is there then.
  Status replace(std::string_view bytes) const;

 private:
  std::string path_, fresh_;
};

}  // namespace wisp::loader
