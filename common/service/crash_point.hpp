#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

namespace wisp::service {

/// Places where a test lets a stage die: each stands between two stores whose order matters.
enum class CrashPoint : std::uint32_t {
  kNone = 0,
  kAfterFill,              ///< descriptor filled, seq not stored
  kAfterSeq,               ///< seq stored, tail not advanced
  kBeforeRing,             ///< published, peer not rung
  kAfterEffectBeforeHead,  ///< effect of a message recorded, head not advanced
  kLeaseWritten,           ///< compute: lease row written, slot word not read again
  kEvictingStored,         ///< loader: EVICTING stored, leases not looked at
  kFillingStored,          ///< loader: FILLING stored, read not submitted
  kCqeBeforeReady,         ///< loader: completion seen, READY not stored
  kReadyBeforePublish,     ///< loader: READY stored, edge 6 not told
  kKvRowHalf,              ///< compute: half of a KV row written
  kSampled,                ///< compute: token drawn, result not published
  kTokenBeforeCommit,      ///< router: token stored, commit word not
  kCommitBeforeHead,       ///< router: committed, head of edge 4 not advanced
  kSseHalf,                ///< gateway: half of an event written to the client
  kQuestionTaken,          ///< speculator: question taken, journal not read
  kDraftsUnsent,           ///< speculator: journal read and drafts made, not sent
  kCount
};
inline constexpr std::array<std::string_view, static_cast<std::size_t>(CrashPoint::kCount)> kCrashPointNames{
    "none",
    "after_fill",
    "after_seq",
    "before_ring",
    "after_effect_before_head",
    "lease_written",
    "evicting_stored",
    "filling_stored",
    "cqe_before_ready",
    "ready_before_publish",
    "kv_row_half",
    "sampled",
    "token_before_commit",
    "commit_before_head",
    "sse_half",
    "question_taken",
    "drafts_unsent"};

std::optional<CrashPoint> crash_point_from(std::string_view name);

namespace detail {
/// The armed point, its countdown and the signal; one per thread of a stage, so that folded stages keep their
/// own.
struct Armed {
  std::atomic<std::uint32_t> point{0};
  std::atomic<std::uint32_t> countdown{0};
  std::atomic<std::uint32_t> signal{9};
};
extern thread_local Armed* armed;
void hit(Armed* a);
}  // namespace detail

/// Dies here if this point is armed for this stage and its countdown is over. Costs one load otherwise.
inline void crash_point(CrashPoint p) {
  detail::Armed* a = detail::armed;
  if (a != nullptr && a->point.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(p)) [[unlikely]]
    detail::hit(a);
}

}  // namespace wisp::service
