#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace wisp::stats {

/// Counters of all stages, one table: a desk's counter block has a cell for each, and the stage that owns the
/// desk is the only writer. They survive restarts, since a desk does.
enum class Counter : std::uint32_t {
  kLoops = 0,            ///< turns of the stage's loop (a report of progress; it kills nobody)
  kParks,                ///< times it slept
  kRingsSent,            ///< doorbells rung
  kRequests,             ///< requests opened (router), accepted (gateway)
  kTokensCommitted,      ///< router
  kSteps,                ///< published (router), run (compute)
  kPromptTokens,         ///< prompt positions computed (router)
  kStaleResults,         ///< results dropped by their key (router)
  kDecodeAccesses,       ///< loader: experts of decode touches
  kDecodeHits,           ///< loader: those resident at the touch
  kPrefillAccesses,      ///< loader
  kPrefillHits,          ///< loader
  kReads,                ///< loader: extents read to the end
  kExpertBytesRead,      ///< loader: payload and padding of those extents
  kDeviceBytesRead,      ///< loader: every byte the drive was asked for, dense part and retries included
  kReadRetries,          ///< loader: short reads continued and EIO retried
  kReadFailures,         ///< loader
  kChecksumFailures,     ///< loader
  kEvictions,            ///< loader
  kPrefetchUsefulBytes,  ///< loader: experts read ahead that were there when a touch asked for them
  kPrefetchLateBytes,    ///< loader: those that were still on their way
  kPrefetchWastedBytes,  ///< loader: bytes read ahead that no touch asked for
  kSlotsDraining,        ///< loader: slots left to a dead epoch, now
  kLeaseWaits,           ///< loader: times a victim's lease had to end first
  kTouches,              ///< compute
  kLeaseHits,            ///< compute: experts leased without a message
  kNeeds,                ///< compute: experts waited for
  kLoaderChanges,        ///< compute: times a touch was sent again to a new loader
  kDecodeSteps,          ///< compute: steps in which every sequence has one row; of these alone:
  kDecodeStepNs,         ///< from a step taken to its result published
  kDecodeGapNs,          ///< from a result published to the next step taken
  kDecodeAttentionNs,    ///< of the step: attention, thread waits included as in the next three
  kDecodeRouterNs,       ///< routers
  kDecodeExpertsNs,      ///< experts and MLPs
  kDecodeHeadNs,         ///< the head
  kDecodeExpertWaitNs,   ///< asleep until an expert comes
  kDecodeThreadWaitNs,   ///< waits for other threads at the ends of loops
  kHttpRequests,         ///< gateway
  kHttpErrors,           ///< gateway
  kResumes,              ///< gateway: streams taken up again by Last-Event-ID
  kHelperRestarts,       ///< gateway: template helpers started again
  kLongestStall,         ///< router: most prompt rows computed between two tokens of one stream
  kTracesLost,           ///< loader: routing traces that ended before the run did
  kPlainSteps,           ///< router: decode steps without drafts whose time is counted, and of these alone:
  kPlainStepNs,          ///< from a step published to its result seen
  kPlainTokens,          ///< tokens that they gave
  kDraftSteps,           ///< router: decode steps with drafts, and of these alone:
  kDraftStepNs,          ///< from a step published to its result seen, and what was waited for drafts before
  kDraftTokens,          ///< tokens that they gave
  kDraftWaitNs,          ///< router: of decode steps, plain or not, what they waited for drafts
  kDraftsWrong,          ///< router: messages of drafts that fit nothing
  kDraftMessages,        ///< speculator: sent
  kDraftingNs,           ///< speculator: CPU time of draft model or head
  kDrafted1,             ///< router: drafts tried in the first place behind a known token, and so on
  kDrafted2,
  kDrafted3,
  kDrafted4,
  kDrafted5,
  kDrafted6,
  kDrafted7,
  kAccepted1,  ///< router: those that stood
  kAccepted2,
  kAccepted3,
  kAccepted4,
  kAccepted5,
  kAccepted6,
  kAccepted7,
  kCount
};
inline constexpr std::uint32_t kCounterCells = 128;
static_assert(static_cast<std::uint32_t>(Counter::kCount) <= kCounterCells);

struct CounterInfo {
  std::string_view name;
  std::string_view unit;
};
inline constexpr std::array<CounterInfo, static_cast<std::size_t>(Counter::kCount)> kCounterTable{{
    {"loops", ""},
    {"parks", ""},
    {"rings_sent", ""},
    {"requests", ""},
    {"tokens_committed", "tokens"},
    {"steps", ""},
    {"prompt_tokens", "tokens"},
    {"stale_results", ""},
    {"decode_accesses", "experts"},
    {"decode_hits", "experts"},
    {"prefill_accesses", "experts"},
    {"prefill_hits", "experts"},
    {"reads", "extents"},
    {"expert_bytes_read", "bytes"},
    {"device_bytes_read", "bytes"},
    {"read_retries", ""},
    {"read_failures", ""},
    {"checksum_failures", ""},
    {"evictions", ""},
    {"prefetch_useful_bytes", "bytes"},
    {"prefetch_late_bytes", "bytes"},
    {"prefetch_wasted_bytes", "bytes"},
    {"slots_draining", "slots"},
    {"lease_waits", ""},
    {"touches", ""},
    {"lease_hits", "experts"},
    {"needs", "experts"},
    {"loader_changes", ""},
    {"decode_steps", ""},
    {"decode_step_ns", "ns"},
    {"decode_gap_ns", "ns"},
    {"decode_attention_ns", "ns"},
    {"decode_router_ns", "ns"},
    {"decode_experts_ns", "ns"},
    {"decode_head_ns", "ns"},
    {"decode_expert_wait_ns", "ns"},
    {"decode_thread_wait_ns", "ns"},
    {"http_requests", ""},
    {"http_errors", ""},
    {"resumes", ""},
    {"helper_restarts", ""},
    {"longest_stall", "rows"},
    {"traces_lost", ""},
    {"plain_steps", ""},
    {"plain_step_ns", "ns"},
    {"plain_tokens", "tokens"},
    {"draft_steps", ""},
    {"draft_step_ns", "ns"},
    {"draft_tokens", "tokens"},
    {"draft_wait_ns", "ns"},
    {"drafts_wrong", ""},
    {"draft_messages", ""},
    {"drafting_ns", "ns"},
    {"drafted_1", "tokens"},
    {"drafted_2", "tokens"},
    {"drafted_3", "tokens"},
    {"drafted_4", "tokens"},
    {"drafted_5", "tokens"},
    {"drafted_6", "tokens"},
    {"drafted_7", "tokens"},
    {"accepted_1", "tokens"},
    {"accepted_2", "tokens"},
    {"accepted_3", "tokens"},
    {"accepted_4", "tokens"},
    {"accepted_5", "tokens"},
    {"accepted_6", "tokens"},
    {"accepted_7", "tokens"},
}};

/// Hop times of one edge, publication to the consumer's first look, in log2 buckets of nanoseconds: bucket i
/// counts [2^i, 2^(i+1)). Written by the consumer.
struct Histogram {
  std::atomic<std::uint64_t> bucket[40];
  void add(std::uint64_t ns) {
    const int b = ns == 0 ? 0 : 63 - __builtin_clzll(ns);
    auto& cell = bucket[b > 39 ? 39 : b];
    cell.store(cell.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
};

/// One line of the flight recorder: what a stage did last, for the post-mortem.
struct FlightEvent {
  std::uint64_t t_ns;
  std::uint32_t what;  ///< Kind of the message, or 0x100 + a crash point's number
  std::uint32_t edge;
  std::uint64_t a;
  std::uint64_t b;
};
inline constexpr std::uint32_t kFlightEvents = 512;

}  // namespace wisp::stats
