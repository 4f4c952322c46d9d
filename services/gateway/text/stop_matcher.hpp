#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace wisp::text {

/// Finds stop strings in a stream of text. Text that could still become part of a stop string is held back,
/// so no byte of one is ever sent. Which stop string ends the stream depends on the text alone, not on how
/// it is cut into pieces; what each push returns is a pure function of the pieces so far.
class StopMatcher {
 public:
  static constexpr std::size_t kMaxStops = 64;        // each costs one step per byte of the answer
  static constexpr std::size_t kMaxStopBytes = 4096;  // a longer one would hold the whole answer back

  /// What one piece releases.
  struct Delta {
    std::string text;                 ///< may be sent now; often empty, never half a character
    std::optional<std::size_t> stop;  ///< index of the stop string that this piece completed
  };

  /// `stops` may be empty (then text passes through). kInvalid for an empty or over-long string, too many of
  /// them, or one that is not UTF-8; the text names its index.
  static Result<StopMatcher> create(std::vector<std::string> stops);

  /// `text` is UTF-8, cut between characters. The first stop string to be complete wins; of several that are
  /// complete at the same byte the longest. After a stop every push returns an empty Delta.
  Delta push(std::string_view text);

  /// The text held back when the stream ends without a stop string; empty after a stop.
  std::string flush();

  bool stopped() const { return stopped_; }

  /// Bytes of text up to the stop string, or seen so far; equals the bytes returned once flushed.
  std::uint64_t text_end() const { return released_ + held_.size(); }

 private:
  struct Automaton {
    std::string text;
    std::vector<std::size_t> border;  // [text.size() + 1] longest proper border of each prefix
    std::size_t matched = 0;          // bytes of `text` that the stream ends with
  };

  std::vector<Automaton> stops_;
  std::string held_;
  std::uint64_t released_ = 0;
  bool stopped_ = false;
};

}  // namespace wisp::text
