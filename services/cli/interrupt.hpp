#pragma once
#include <sys/types.h>

namespace wisp::cli {

/// Ctrl-C (SIGINT) and SIGTERM as something that a poll loop can wait for. The first asks for a clean end;
/// the second, before rearm(), kills the pipeline and this process at once. One per process: signals are
/// global.
class Interrupts {
 public:
  /// Installs the handlers.
  Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// Readable once a signal has come.
  int fd() const;
  bool came() const;
  /// Forgets the signals so far: the next one asks for a clean end again.
  void rearm();
  /// The process to kill on the second signal; 0 = none.
  static void kill_with_us(pid_t launcher);
};

}  // namespace wisp::cli
