#pragma once
#include <cstdint>

#include "services/compute/spans.hpp"
#include "shm/desk.hpp"

namespace wisp::compute {

/// Where the time of decode steps goes, as counters of the desk. A step is one of decode where every sequence
/// has one row; the gap before it counts where the step before was one too.
///
/// What pipelining costs beside arithmetic and the drive is
///   (step + gap - expert wait - (attention + router + experts + head - thread wait)) / (step + gap).
class StepTimes {
 public:
  StepTimes() : anchor_ticks_(stats::ticks()), anchor_ns_(shm::monotonic_now()) {}

  /// A step was taken from the ring.
  void begin(Spans& spans) {
    begin_ = stats::ticks();
    spans.restart(begin_);
  }
  /// Its result is published. `expert_wait`, `thread_wait`: running sums of ticks, of sleeps for an expert
  /// and of waits at the ends of loops.
  void end(shm::Desk* desk, bool decode, const Spans& spans, std::uint64_t expert_wait,
           std::uint64_t thread_wait) {
    using stats::Counter;
    const std::uint64_t now = stats::ticks();
    if (decode) {
      const double ns =
          static_cast<double>(shm::monotonic_now() - anchor_ns_) / static_cast<double>(now - anchor_ticks_);
      const auto add = [&](Counter c, std::uint64_t ticks) {
        desk->add(c, static_cast<std::uint64_t>(static_cast<double>(ticks) * ns));
      };
      desk->add(Counter::kDecodeSteps);
      add(Counter::kDecodeStepNs, now - begin_);
      if (last_end_ != 0) add(Counter::kDecodeGapNs, begin_ - last_end_);
      add(Counter::kDecodeAttentionNs, spans.of(Span::kAttention));
      add(Counter::kDecodeRouterNs, spans.of(Span::kRouter));
      add(Counter::kDecodeExpertsNs, spans.of(Span::kExperts));
      add(Counter::kDecodeHeadNs, spans.of(Span::kHead));
      add(Counter::kDecodeExpertWaitNs, expert_wait - expert_wait_);
      add(Counter::kDecodeThreadWaitNs, thread_wait - thread_wait_);
    }
    expert_wait_ = expert_wait;
    thread_wait_ = thread_wait;
    last_end_ = decode ? now : 0;
  }

 private:
  std::uint64_t anchor_ticks_, anchor_ns_;  ///< of one moment: what a tick is worth
  std::uint64_t begin_ = 0, last_end_ = 0;  ///< ticks; 0 where no decode step went before
  std::uint64_t expert_wait_ = 0, thread_wait_ = 0;
};

}  // namespace wisp::compute
