#pragma once
#include <atomic>
#include <cstdint>

#include "shm/region.hpp"
#include "shm/stages.hpp"

namespace wisp::shm {

enum class StageState : std::uint32_t { kDown = 0, kStarting, kReady, kBackingOff, kGivenUp, kStopping };

/// Loader epochs whose end may still be pending at once. The launcher starts no epoch e before e -
/// kDrainWindow has drained.
inline constexpr std::uint32_t kDrainWindow = 64;

/// What the launcher knows of one stage. Written by the launcher alone; everyone reads. After each change the
/// launcher rings every doorbell, so that whoever waits for such a change looks again.
struct StageLife {
  std::atomic<std::uint32_t> epoch;         ///< of the newest process; 0 = never started; only grows
  std::atomic<std::uint32_t> dead_through;  ///< every epoch up to this one is reaped
  std::atomic<std::uint32_t> pid;           ///< for people and debuggers; nothing signals by it
  std::atomic<std::uint32_t> state;         ///< StageState
  std::atomic<std::uint32_t> stopped;       ///< 1 while the process is in state T
  std::atomic<std::uint32_t> traced_by;     ///< TracerPid, 0 = nobody
  std::atomic<std::uint32_t> restarts;
  std::atomic<std::uint32_t> last_status;  ///< wait status of the last death
  std::atomic<std::uint64_t> started_ns;   ///< engine time of the newest start
  std::atomic<std::uint64_t> died_ns;      ///< CLOCK_MONOTONIC of the last reaping
  /// Entry e % kDrainWindow is e once the tombstone of epoch e has hung up (loader only): nothing that epoch
  /// e asked the drive for can still arrive. Kept per epoch, since a later one may hang up first.
  std::atomic<std::uint32_t> drained[kDrainWindow];
};

/// The region `life`.
struct Life {
  RegionHeader region;
  std::atomic<std::uint64_t> pause_offset_ns;  ///< engine time = CLOCK_MONOTONIC - this
  std::atomic<std::uint64_t>
      paused_since_ns;  ///< not 0: engine time stands still since then (a stage is held)
  /// The step gate: the router publishes no step with a number >= this. ~0 = open.
  std::atomic<std::uint64_t> gate;
  std::atomic<std::uint32_t> shutting_down;
  std::atomic<std::uint32_t> resets;  ///< how often a dirty death made fresh regions
  std::atomic<std::uint64_t>
      ram_peak_bytes;  ///< largest sum of regions and private memory seen by the launcher
  std::atomic<std::uint64_t> ram_now_bytes;
  char give_up_reason[256];  ///< written before a state becomes kGivenUp
  alignas(kLine) StageLife stage[kStages];

  bool epoch_dead(StageId s, std::uint32_t epoch) const {
    return stage[index(s)].dead_through.load(std::memory_order_acquire) >= epoch;
  }
  /// True when no write of loader epoch `epoch` can reach the slab any more.
  bool epoch_drained(std::uint32_t epoch) const {
    return stage[index(StageId::kLoader)].drained[epoch % kDrainWindow].load(std::memory_order_acquire) ==
           epoch;
  }
};

/// Nanoseconds of engine time: CLOCK_MONOTONIC less the time in which a stage was stopped or traced. Every
/// deadline of the product is engine time, so that a debugger runs none out.
std::uint64_t engine_now(const Life& life);
/// CLOCK_MONOTONIC in nanoseconds.
std::uint64_t monotonic_now();

}  // namespace wisp::shm
