#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "services/cli/answer.hpp"
#include "services/cli/draft_figures.hpp"
#include "services/cli/run_state.hpp"

namespace wisp::cli {

/// Where the time of decode steps went, in nanoseconds, as compute counts it (stats::Counter).
struct DecodeTimes {
  std::uint64_t steps = 0, step = 0, gap = 0;
  std::uint64_t attention = 0, router = 0, experts = 0, head = 0;
  std::uint64_t expert_wait = 0, thread_wait = 0;

  /// The share of the time that is neither arithmetic nor waiting for the drive; nothing without steps.
  std::optional<double> overhead() const;
};

/// What the run's counters say beside an answer.
struct RunFigures {
  std::uint32_t slots = 0;           ///< of the cache
  std::uint32_t prefetch_slots = 0;  ///< beside them
  std::uint32_t experts = 0;
  std::uint64_t accesses = 0;  ///< experts of decode touches
  std::uint64_t hits = 0;
  std::uint64_t prompt_accesses = 0, prompt_hits = 0;  ///< of all other touches
  std::uint64_t expert_bytes_read = 0;
  /// Experts read ahead: there when asked for, still on their way then, never asked for.
  std::uint64_t prefetch_useful_bytes = 0, prefetch_late_bytes = 0, prefetch_wasted_bytes = 0;
  std::uint64_t device_bytes_read = 0;
  std::uint64_t traces_lost = 0;  ///< ended before the run did
  std::uint64_t ram_budget_bytes = 0;
  std::uint64_t ram_peak_bytes = 0;
  std::string profile;
  std::string profile_reason;
  DecodeTimes decode;
  DraftFigures drafts;

  /// hits / accesses; nothing where no expert was asked for.
  std::optional<double> hit_rate() const;
  /// The same with only what was counted after `before`.
  RunFigures since(const RunFigures& before) const;
};
RunFigures figures_of(const RunState& state);

/// The final table, in words that need no manual.
std::string table(const Answer& answer, const RunFigures& figures);
/// The object of `wisp run --json`, one line without its end.
std::string json_line(const Answer& answer, const RunFigures& figures);

}  // namespace wisp::cli
