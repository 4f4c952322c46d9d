#pragma once
#include <sys/types.h>

#include <array>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "launch/regions.hpp"

namespace wisp::launch {

/// A program to start.
struct SpawnRequest {
  std::string path;
  std::vector<std::string> arguments;  ///< after argv[0]
  std::vector<Grant> grants;           ///< everything it inherits beside standard input, output and error
  std::array<int, 3> standard{-1, -1,
                              -1};  ///< -1: /dev/null for input, the launcher's standard error for the others
  bool new_session = false;         ///< a session of its own instead of a process group of its own
};

/// A started process. Identity is the pidfd; the pid is for people.
struct Child {
  pid_t pid = 0;
  Fd pidfd;

  bool alive() const { return pidfd.valid(); }
  /// Sends a signal; one that comes after its end is lost, as it should be.
  void signal(int number) const;
};

/// Starts a process with posix_spawn: no fork of this address space, no signal mask, no inherited descriptor
/// but those granted (all others must be close-on-exec). Errors: kNotFound (no such program), kIo.
Result<Child> spawn(const SpawnRequest& request);

/// Makes room for the descriptors of a run: raises the soft limit as far as it may. Errors: kUnavailable
/// where the hard limit is too low.
Status allow_descriptors();

/// Waits for a child that its pidfd reports as ended. Returns the wait status.
int reap(Child& child);

/// Makes a stage a likelier victim of the OOM killer than the launcher is: gateway least, compute most.
void adjust_oom_score(pid_t pid, shm::StageId stage);

/// Ends of a pipe, both close-on-exec.
struct Pipe {
  Fd read;
  Fd write;
};
Result<Pipe> make_pipe();
/// Ends of a SOCK_SEQPACKET pair, both close-on-exec; the first does not block.
struct SocketPair {
  Fd ours;
  Fd theirs;
};
Result<SocketPair> make_socket_pair();

}  // namespace wisp::launch
