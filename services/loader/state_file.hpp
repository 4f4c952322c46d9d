#pragma once
#include <string>
#include <string_view>

#include "base/result.hpp"

/// Small files that outlive a run.
namespace wisp::loader {

/// $XDG_STATE_HOME/wisp, by default ~/.local/state/wisp. Empty where neither variable is an absolute path.
std::string state_folder();

/// Replaces `path` by rename, so that a reader finds the old file or the new one; makes the folder. Not
/// flushed to the drive, which nobody shall wait for: whoever reads it must know a torn file.
/// Errors: kIo names the file; the old one is there then.
Status replace_file(const std::string& path, std::string_view bytes);

}  // namespace wisp::loader
