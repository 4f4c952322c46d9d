#pragma once
#include <atomic>
#include <cstdint>

namespace wisp::ring {

/// What a descriptor says. One list for all edges, so that a trace of any ring can be read alone.
enum class Kind : std::uint8_t {
  kNone = 0,
  // edge 1, gateway -> router
  kSubmit,       ///< arena: SubmitMessage
  kCancel,       ///< request
  kFinishAt,     ///< request, pos = tokens to keep: a stop string was found
  kAcknowledge,  ///< request: the gateway is done with its record
  kAdopt,        ///< request: a client resumed a record of an earlier gateway
  // edge 2, router -> gateway
  kToken,  ///< request, pos = committed tokens
  // edge 3, router -> compute
  kStep,  ///< aux = step number, arena: StepPlan
  // edge 4, compute -> router
  kStepResult,  ///< aux = step number, arena: StepResult
  // edge 5, compute -> loader
  kTouch,  ///< aux = step, key = layer << 16, arena: TouchMember[]; with kTouchChoices: slot = its members
  kNeed,   ///< key = layer << 16 | expert: asked again
  kGuess,  ///< key = layer << 16, arena: TouchMember[]: what a touch may ask for soon; may be lost
  kKept,   ///< key = layer << 16, arena: TouchMember[]: choices of drafted rows that turned out to stand
  // edge 6, loader -> compute
  kSlotReady,   ///< key, slot, gen
  kSlotFailed,  ///< key, arena: text of the error
  // edge 8, router -> speculator
  kDraftWanted,  ///< request, slot = its record, pos = tokens known, key = how many, flags = sources asked
  // edge 9, speculator -> router
  kDraft,  ///< request, slot = its record, pos of the first, flags = source, arena: ids (u32), aux = ns it
           ///< took
};

/// Flags of kTouch.
inline constexpr std::uint8_t kTouchDecode = 1;   ///< every row is a decode row: counted in the hit rate
inline constexpr std::uint8_t kTouchAgain = 2;    ///< repeated for a new loader: counts in no statistics
inline constexpr std::uint8_t kTouchChoices = 4;  ///< what each row chose follows the members

/// Flags of kDraftWanted: the sources asked.
inline constexpr std::uint8_t kAskModel = 1;
inline constexpr std::uint8_t kAskMatch = 2;
inline constexpr std::uint8_t kAskHead = 4;
/// Where drafts come from, as far as their chances differ. The value is the flag of kDraft.
enum class DraftSource : std::uint8_t { kModel = 0, kShortMatch = 1, kLongMatch = 2, kHead = 3 };
inline constexpr std::uint32_t kDraftSources = 4;
/// Flag of kDraft beside its source: nothing else follows to that question.
inline constexpr std::uint8_t kLastDraft = 0x40;

/// One message: a cache line. `seq` is stored last with release (index + 1) and is the commit; all else is
/// plain data that the consumer may read once it has seen `seq`. Written by the edge's producer only.
struct Descriptor {
  std::atomic<std::uint64_t> seq;
  Kind kind;
  std::uint8_t flags;
  std::uint16_t len;
  std::uint32_t credit;
  std::uint64_t request;
  std::uint32_t pos;
  std::uint32_t slot;
  std::uint32_t key;
  std::uint32_t gen;
  std::uint32_t
      arena_off;  ///< where this message's payload starts in the edge's arena; also for an empty one
  std::uint32_t arena_len;
  std::uint64_t t_pub;  ///< CLOCK_MONOTONIC ns at publication
  std::uint64_t aux;
};
static_assert(sizeof(Descriptor) == 64);

constexpr std::uint32_t expert_key(std::uint32_t layer, std::uint32_t expert) {
  return layer << 16 | expert;
}
constexpr std::uint32_t layer_of(std::uint32_t key) {
  return key >> 16;
}
constexpr std::uint32_t expert_of(std::uint32_t key) {
  return key & 0xffff;
}

}  // namespace wisp::ring
