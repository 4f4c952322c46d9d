#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "stats/ticks.hpp"

namespace wisp::compute {

/// What the thread of a step is at.
enum class Span : std::uint8_t {
  kOther,      ///< rows, embedding, leases, messages, waits
  kAttention,  ///< with its norm, products and residual
  kRouter,     ///< with its norm
  kExperts,    ///< and the MLP of dense layers, with the norm there
  kHead,       ///< with the last norm
  kCount
};

/// Adds up where the time of a step goes: one span at a time, two reads of a counter a change.
class Spans {
 public:
  void enter(Span s) {
    const std::uint64_t now = stats::ticks();
    ticks_[static_cast<std::size_t>(now_)] += now - since_;
    since_ = now;
    now_ = s;
  }
  /// Begins at `ticks` with nothing added up.
  void restart(std::uint64_t ticks) {
    ticks_ = {};
    since_ = ticks;
    now_ = Span::kOther;
  }
  /// stats::ticks() spent in `s` since the restart, without the span that is open.
  std::uint64_t of(Span s) const { return ticks_[static_cast<std::size_t>(s)]; }

 private:
  std::array<std::uint64_t, static_cast<std::size_t>(Span::kCount)> ticks_{};
  std::uint64_t since_ = 0;
  Span now_ = Span::kOther;
};

}  // namespace wisp::compute
