#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/run_plan.hpp"
#include "ring/messages.hpp"
#include "services/router/journal_writer.hpp"

namespace wisp::router {

/// Rows [start, start + count) of journal record `record` in the next step.
struct PlannedRows {
  std::uint32_t record = 0;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  bool sample = false;
  std::uint32_t drafts = 0;  ///< the last of `count`
  bool operator==(const PlannedRows&) const = default;
};

/// How many rows of prompts one step may hold. Nothing here decides a bit of any answer.
struct ChunkRule {
  std::uint32_t alone = 0;   ///< while nobody decodes
  std::uint32_t beside = 0;  ///< beside streams that decode, which wait for all of them; 1 at least
};

/// The chunk of the plan; a quarter of it beside streams, if all experts are resident. Where they come from
/// the drive a chunk of any length reads nearly all of them: four short ones would read four times as much,
/// and hold the streams up for longer than the one.
ChunkRule chunk_rule(const plan::RunPlan& plan);

/// Chooses the rows of each step, and writes them as edge 3 carries them. All its memory is taken at the
/// start.
///
/// Every sequence that decodes has its row in every step. The chunk's room is shared among the prompts that
/// wait: each gets an equal part, and what short ones leave goes to the others. So a short prompt behind a
/// long one is through about as soon as if it had come first, a long one loses no more than its
/// neighbours use, and no estimate or history is needed. (First come, first served lets one long prompt hold
/// up all later ones; shortest first can hold up a long one for ever.) Rows that do not divide evenly, and
/// whole turns where there are more prompts than room, go round by record: a prompt that waits has a row at
/// least once in ceil(records / room) steps.
class BatchPlanner {
 public:
  /// `journal` outlives this and is attached. `kv_pages`: of the run.
  BatchPlanner(const JournalWriter& journal, ChunkRule rule, std::uint32_t parallel, std::uint32_t kv_pages);

  /// Whether a plan would hold any row.
  bool any() const;
  /// The rows of the next step, oldest sequence first; empty if there is nothing to do. Valid until the next
  /// call. Depends on the journal and on whose turn it is, and changes neither.
  std::span<const PlannedRows> plan();
  /// Whether these rows of the last plan are one sequence's next token.
  bool decodes(const PlannedRows& p) const;
  /// Rows that the last plan leaves of what one step may hold.
  std::uint32_t room() const;
  /// Guessed tokens behind the row of `record`, which decodes() in the last plan; not more than room() and
  /// ring::kMostDrafted, nor ring::kMostDraftedInStep in all.
  void add_drafts(std::uint32_t record, std::span<const std::uint32_t> ids);
  /// The last plan as edge 3 carries it; the turn moves on. Valid until the next call.
  std::span<const std::byte> encode(std::uint64_t step, std::uint32_t kv_generation);
  /// KV pages that no admitted, unfinished record names, ascending: a free list that is derived, so that none
  /// can leak. A step of a record that has finished may still write them; edge 3 is first in, first out, so
  /// every step that uses them anew comes later. Valid until the next call.
  std::span<const std::uint32_t> free_pages();

 private:
  bool running(std::uint32_t record) const;
  void share(std::uint32_t room);

  const JournalWriter* journal_;
  ChunkRule rule_;
  std::uint32_t kv_pages_;
  std::uint32_t turn_ = 0;       ///< record that the rows left over are offered first
  std::uint32_t next_turn_ = 0;  ///< after the last plan
  std::vector<PlannedRows> rows_;
  std::vector<std::uint32_t> prompts_;  ///< places in rows_ that share the room, by turn
  std::uint32_t most_rows_;
  std::vector<std::uint32_t> drafts_;  ///< in the order of rows_
  std::vector<std::byte> bytes_;
  std::vector<bool> used_;
  std::vector<std::uint32_t> free_;
};

}  // namespace wisp::router
