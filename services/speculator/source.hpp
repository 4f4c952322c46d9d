#pragma once
#include <cstdint>
#include <span>

namespace wisp::speculator {

/// Guesses the tokens that follow a sequence. It may be wrong about all of them: the target's own draw
/// decides at each position. Keeps what it likes about a sequence, and finds by itself what has changed since
/// the last call, so that a new life, a rejected guess or another request in the same place need no message.
class Source {
 public:
  virtual ~Source() = default;
  /// Guesses up to out.size() tokens that follow `ids` (prompt and answer so far; not empty) of the sequence
  /// that lives in `place` (below the plan's number of records). Returns how many it wrote; each is below
  /// the target's vocabulary. 0: nothing to say.
  virtual std::uint32_t propose(std::uint32_t place, std::uint64_t request,
                                std::span<const std::uint32_t> ids, std::span<std::uint32_t> out) = 0;
  /// Whether the last call of propose() about this place ended before it had caught up with the sequence: the
  /// same call goes on.
  virtual bool has_more(std::uint32_t /*place*/) const { return false; }
  /// The sequence in `place` has ended; what was kept of it may go.
  virtual void forget(std::uint32_t place) = 0;
};

}  // namespace wisp::speculator
