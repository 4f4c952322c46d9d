#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"

/// Where runs are found by those who have nothing but a user's name: directories, each with a locked file.
namespace wisp::service {

/// $XDG_RUNTIME_DIR/wisp, or /tmp/wisp-<uid> where there is none.
std::string run_base();

/// Makes the file `lock` in a run's directory and locks it: the run lives until the descriptor is closed, by
/// its holder or by the kernel. Errors: kIo.
Result<Fd> mark_live(const std::string& dir);

/// Whether somebody holds the lock of a run's directory. An OFD lock says so; no pid is looked at.
bool is_live(const std::string& dir);

/// Directories of the live runs in a base directory; none where it belongs to somebody else.
std::vector<std::string> live_runs(const std::string& base);

/// What somebody wants of a run.
enum class Purpose : std::uint8_t { kLook, kChange };

/// `wanted` (a directory, or the name of one under run_base()), or the only live run, in run_base() or else
/// in /tmp/wisp-<uid>: one that is there beside another base is for looking at, and is changed only by its
/// name. Errors: kNotFound, kInvalid (several, or one of another base: lists them).
Result<std::string> find_run(const std::string& wanted, Purpose purpose = Purpose::kLook);

}  // namespace wisp::service
