#pragma once
#include <sys/types.h>

#include "base/result.hpp"

namespace wisp::cli {

/// Ctrl-C (SIGINT) and SIGTERM as something that a poll loop can wait for. The first asks for a clean end;
/// the second, before rearm(), kills the pipeline and this process at once. Signals are global: what is moved
/// or installed again is the same thing.
class Interrupts {
 public:
  /// Installs the handlers. Errors: kExhausted where no more files may be open.
  static Result<Interrupts> install();
  Interrupts(Interrupts&&) = default;
  Interrupts& operator=(Interrupts&&) = default;

  /// Readable once a signal has come.
  int fd() const;
  bool came() const;
  /// Forgets the signals so far: the next one asks for a clean end again.
  void rearm();
  /// The process to kill on the second signal; 0 = none.
  static void kill_with_us(pid_t launcher);

 private:
  Interrupts() = default;
};

}  // namespace wisp::cli
