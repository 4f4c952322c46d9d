#pragma once
#include <string>

#include "base/function_ref.hpp"
#include "base/result.hpp"

/// Small files that outlive a run.
namespace wisp::loader {

/// $XDG_STATE_HOME/wisp, by default ~/.local/state/wisp. Empty where neither variable is an absolute path.
std::string state_folder();

/// Replaces `path` by what `make` says, which may read the old file: no other engine updates it meanwhile. By
/// rename, so that a reader finds the old file or the new one; makes the folder. Not flushed to the drive,
/// which nobody shall wait for: whoever reads it must know a torn file.
/// Errors: kUnavailable where another engine is at it, to be tried again later; kIo names the file. The old
/// file is there then.
Status update_file(const std::string& path, FunctionRef<std::string()> make);

}  // namespace wisp::loader
