#pragma once
#include <cstdint>

namespace wisp::launch {

/// How often and how soon a process is started again.
struct RestartLimits {
  std::uint32_t deaths = 5;  ///< gives up at this many deaths with no progress between them
  std::uint64_t first_ms =
      100;  ///< pause before the second restart; doubles from there. The first is at once
  std::uint64_t max_ms = 5000;
};

/// What to do about a death.
struct RestartDecision {
  bool give_up = false;
  std::uint64_t delay_ms = 0;
};

/// Counts the deaths of one process. Pure: no clock, no process.
class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits = {}) : limits_(limits) {}

  /// `progressed`: the run got further since the death before this one.
  RestartDecision on_death(bool progressed);
  /// Begins anew: somebody asked for a restart by hand.
  void forgive() { deaths_ = 0; }
  /// Deaths since the last progress.
  std::uint32_t deaths() const { return deaths_; }

 private:
  RestartLimits limits_;
  std::uint32_t deaths_ = 0;
};

/// What a death says about the memory that the process could write.
enum class DeathCause {
  kClean,   ///< killed from outside or left by itself: what it wrote is whole, since every store is a legal
            ///< last one
  kDirty,   ///< a fault of its own: its regions may be damaged, all but the journal are made anew
  kRefuses  ///< exit status 125: starting again cannot help
};

/// Classifies a wait status (as waitpid gives it).
DeathCause cause_of(int wait_status);
/// Whether somebody outside ended it (kill, the OOM killer): then reads of experts count as progress too. A
/// process that fails by itself would do the same reads over and over.
bool killed_from_outside(int wait_status);

}  // namespace wisp::launch
