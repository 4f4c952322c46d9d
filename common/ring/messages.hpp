#pragma once
#include <cstdint>
#include <type_traits>

#include "shm/journal.hpp"

/// Payloads of edges 3 to 6. Plain data, read in place from the producer's arena.
namespace wisp::ring {

/// kStep: StepHeader, then `requests` times {StepRequest, ids[count], pages[pages]}. Compute keeps nothing
/// between steps but KV rows: all it needs is here, or committed in the journal (a text under penalties).
struct StepHeader {
  std::uint64_t step = 0;
  std::uint32_t requests = 0;
  std::uint32_t rows = 0;  ///< sum of counts
  std::uint32_t kv_generation = 0;
  std::uint32_t reserved = 0;
};

/// Most tokens that a step guesses for one sequence, and for all of them.
inline constexpr std::uint32_t kMostDrafted = 7;
inline constexpr std::uint32_t kMostDraftedInStep = 14;
/// Longest message of drafts: what follows a step that takes all of its own is then there already.
inline constexpr std::uint32_t kLongestDraft = 2 * kMostDrafted + 1;

/// Rows [start, start + count) of one sequence, the last `drafts` of them guessed. Pages cover
/// [0, start + count).
struct StepRequest {
  std::uint64_t request = 0;
  std::uint32_t record = 0;  ///< index of the journal record and of the cancel word
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  std::uint32_t pages = 0;
  std::uint32_t sample = 0;  ///< 1: draw the token that follows the last certain row, and so on as
                             ///< long as what was drawn is what had been guessed
  std::uint32_t generated =
      0;  ///< number of the first of these tokens in the answer (row of the logits file)
  std::uint32_t drafts = 0;
  std::uint32_t reserved = 0;
  shm::RequestParams params;
};

enum class RowStatus : std::uint32_t { kOk = 0, kFailed = 1, kCancelled = 2 };

/// kStepResult: StepResultHeader, then `requests` StepResultRow, then words of 32 bits: for each row in turn
/// and each token that it drew, shm::logprob_words(row.logprobs) of them.
struct StepResultHeader {
  std::uint64_t step = 0;
  std::uint32_t requests = 0;
  std::uint32_t reserved = 0;
};
struct StepResultRow {
  std::uint64_t request = 0;
  std::uint32_t record = 0;
  std::uint32_t start = 0;  ///< KV rows [start, start + count) are written, of tokens that stand
  std::uint32_t count = 0;
  RowStatus status = RowStatus::kOk;
  /// How many were drawn, the last of which follows position start + count - 1; the others stand in rows.
  std::uint32_t sampled = 0;
  std::uint32_t drafts = 0;  ///< that the step had
  std::uint32_t tokens[kMostDrafted + 1] = {};
  std::uint32_t logprobs = 0;  ///< as the request's: what is told of each token behind the rows
  char error[256] = {};
};

/// kTouch: one entry per distinct expert of the layer's rows, in order of first appearance. Compute sends it
/// after it leased what it found READY; `needs` asks for exactly one answer on edge 6.
struct TouchMember {
  std::uint16_t expert = 0;
  std::uint16_t needs = 0;
  std::uint32_t rows = 0;  ///< how many rows of this step chose it; guessed ones do not count
};
/// Where a trace is recorded, the members are followed by the touch's rows, and these by top_k choices of
/// each row, by rank.
struct TouchRow {
  std::uint32_t request = 0;   ///< the request's number without the gateway's epoch
  std::uint32_t position = 0;  ///< in its sequence
};
struct TouchChoice {
  float weight = 0;  ///< the expert's product is multiplied by it
  std::uint16_t expert = 0;
  std::uint16_t reserved = 0;
};

/// Bytes behind the rows of a step of `parallel` sequences, all with `logprobs`, at the most.
constexpr std::uint64_t most_told_bytes(std::uint32_t parallel, std::uint32_t logprobs) {
  return (std::uint64_t{parallel} + kMostDraftedInStep) * shm::logprob_words(logprobs) *
         sizeof(std::uint32_t);
}

static_assert(std::is_trivially_copyable_v<StepRequest> && std::is_trivially_copyable_v<StepResultRow> &&
              std::is_trivially_copyable_v<TouchMember> && std::is_trivially_copyable_v<TouchRow> &&
              std::is_trivially_copyable_v<TouchChoice>);

}  // namespace wisp::ring
