#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "ring/messages.hpp"
#include "services/cli/run_state.hpp"

namespace wisp::cli {

/// What was guessed and what stood, as the router counts it (stats::Counter).
struct DraftFigures {
  std::uint64_t plain_steps = 0, plain_ns = 0, plain_tokens = 0;
  std::uint64_t steps = 0, ns = 0, tokens = 0;  ///< of steps with drafts
  std::uint64_t drafting_ns = 0;                ///< CPU time of draft model or head
  std::uint64_t wait_ns = 0;                    ///< of the steps' time, waited for drafts
  std::array<std::uint64_t, ring::kMostDrafted> drafted{}, accepted{};  ///< by place behind a known token

  std::uint64_t all_drafted() const;
  std::uint64_t all_accepted() const;
  double tokens_per_pass() const;
  /// Of steps with drafts, and of plain ones; 0 where there were none.
  double tok_s() const;
  double plain_tok_s() const;
  /// "78 % 61 %": what stood at each place, as far as anything was tried there.
  std::string by_place() const;
  /// The same with only what was counted after `before`.
  DraftFigures since(const DraftFigures& before) const;
};
DraftFigures draft_figures_of(const RunState& state);
nlohmann::ordered_json to_json(const DraftFigures& figures);

}  // namespace wisp::cli
