#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ring/descriptor.hpp"
#include "ring/messages.hpp"

namespace wisp::router {

using ring::DraftSource;
using ring::kDraftSources;

/// How many drafts a step is to try: a pure class without clock or I/O. It is told what steps took and which
/// drafts stood, and weighs them; equal calls in equal order give equal answers.
///
/// A step of n rows takes r(n) times as long as a plain one of the same sequences, and gives
/// 1 + a1 + a1 a2 + .. tokens for each sequence, a_i the chance that draft i stands when those before it did.
/// Drafts are tried while the tokens grow faster than the time.
///
/// What is lost by trying is bounded by a purse: a hundredth of the time of decoding goes into it, what a
/// step with drafts took beyond what its tokens would have taken plainly comes out of it, and without money
/// nothing is tried. What a step gains goes in too, up to a bound, so that a run of bad luck stops what had
/// paid no sooner than it must.
class DraftControl {
 public:
  /// `records`: of the journal. `fixed`: 0 = by what pays; else so many, whatever it costs.
  DraftControl(std::uint32_t records, std::uint32_t fixed);

  /// A new request lives in `record`.
  void begin(std::uint32_t record);
  /// Draft number `at` (from 0) of a message stood, or not; those before it did.
  void judge(std::uint32_t record, DraftSource source, std::uint32_t at, bool stood);
  /// A message that was asked for came after `ns`, and cost its source `cpu_ns`; `count`: drafts in it.
  void answered(DraftSource source, std::uint64_t ns, std::uint64_t cpu_ns, std::uint32_t count);
  /// A decode step of `sequences` that had `drafts` beside them took `ns` and gave `tokens`. `waited_ns`: for
  /// drafts, before it.
  void step(std::uint32_t sequences, std::uint32_t drafts, std::uint64_t ns, std::uint64_t waited_ns,
            std::uint32_t tokens);

  /// Drafts at hand for one sequence, from number `at` of their message on.
  struct Offer {
    std::uint32_t record = 0;
    DraftSource source = DraftSource::kModel;
    std::uint32_t at = 0;
    std::uint32_t count = 0;
  };
  /// How many of each offer a step of `sequences` is to try; not more than `room` in all. [offers], valid
  /// until the next call.
  std::span<const std::uint32_t> choose(std::uint32_t sequences, std::span<const Offer> offers,
                                        std::uint32_t room);
  /// What is worth waiting for where no draft is at hand: so many, for so long; none and 0 where it is not.
  struct Wish {
    std::uint32_t count = 0;
    std::uint64_t patience_ns = 0;
  };
  Wish wish(std::uint32_t record, DraftSource source) const;
  /// Whether `source` is to be asked now, although nobody waits: it has been of use lately and `beside` says
  /// that its work is free, or its turn to be looked at has come. `now_token`: tokens of the answer.
  bool worth_asking(std::uint32_t record, DraftSource source, std::uint32_t now_token, bool beside);
  std::uint32_t fixed() const { return fixed_; }

  // what it goes by, to be shown
  /// Nanoseconds of a plain step of one sequence; 0: none yet.
  double plain_ns(std::uint32_t sequences = 1) const { return plain_[std::min(sequences, kMostRows)].ns; }
  double ratio(std::uint32_t sequences, std::uint32_t drafts) const;
  double chance(std::uint32_t record, DraftSource source, std::uint32_t at) const;
  double purse_ns() const { return purse_; }

 private:
  static constexpr std::uint32_t kMostRows = 32;
  struct Rate {
    double stood = 0, tried = 0;
  };
  using Rates = std::array<std::array<Rate, ring::kLongestDraft>, kDraftSources>;
  struct Plain {
    double ns = 0;
    std::uint32_t count = 0;
  };
  struct Source {
    double latency_ns = 0;  ///< from asked to there; of a model and a head for each draft
    double any = 0.5;       ///< share of the answers with a draft in them
    double spent_ns = 0;
  };
  struct Asked {
    std::uint32_t token = 0;
    bool ever = false;
  };
  /// Both kinds of match are one source.
  static constexpr std::size_t asked_of(DraftSource s) {
    return static_cast<std::size_t>(s == DraftSource::kLongMatch ? DraftSource::kShortMatch : s);
  }
  double latency(DraftSource source, std::uint32_t count) const;
  double best_gain(std::uint32_t record, DraftSource asked, std::uint32_t count, double waited_ns) const;
  double gain(const Offer& o, std::uint32_t count, std::uint32_t sequences, double waited_ns) const;

  std::uint32_t fixed_;
  std::vector<Rates> rates_;  ///< [records]
  Rates all_{};               ///< of all requests: what a new one begins with
  std::vector<std::array<Asked, kDraftSources>> asked_;
  std::array<Source, kDraftSources> sources_{};
  std::array<Plain, kMostRows + 1> plain_{};   ///< [sequences]
  std::array<double, kMostRows + 1> ratio_{};  ///< [drafts] of the time of a plain step; 0: not seen
  std::array<std::uint64_t, kMostRows + 1> ratio_seen_{};  ///< number of the last step that had so many
  std::uint64_t steps_ = 0, last_trial_ = 0;
  double purse_ = 0;            ///< nanoseconds
  double decode_ns_ = 0;        ///< time of all decode steps
  std::uint32_t in_a_row_ = 0;  ///< steps with drafts since the last plain one
  std::vector<std::uint32_t> chosen_;
};

}  // namespace wisp::router
