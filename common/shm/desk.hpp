#pragma once
#include <atomic>
#include <cstdint>

#include "ring/descriptor.hpp"
#include "shm/region.hpp"
#include "shm/stages.hpp"
#include "stats/counters.hpp"

namespace wisp::shm {

/// What a stage that sleeps waits for; shown by `wisp stat`.
enum class WaitFor : std::uint32_t {
  kNothing = 0,  ///< it runs
  kWork,         ///< any message on its edges
  kRingSpace,    ///< detail = edge whose consumer is behind
  kExpert,       ///< detail = key of the expert (compute)
  kDense,        ///< the dense region to be filled (compute)
  kStepGate,     ///< the step gate (router)
  kStepResult,   ///< detail = step number, low 32 bits (router)
  kTombstone,    ///< detail = loader epoch whose reads may still land (loader)
  kLease,        ///< detail = slot (loader)
  kDrive,        ///< detail = reads in flight (loader)
  kKvPages,      ///< pages or a place in the batch (router)
  kDrafts,       ///< drafts that are worth a wait (router)
};

/// Where an edge's ring and arena lie in its producer's desk. Written by the launcher before any stage
/// starts.
struct EdgePlace {
  std::uint64_t ring_offset;
  std::uint64_t arena_offset;
  std::uint64_t arena_size;
  std::uint32_t slots;
  std::uint32_t reserved;
};

struct alignas(kLine) Cursor {
  std::atomic<std::uint64_t> value;
};

/// The region `desk.<stage>`. Its stage is the only writer of everything below `edges`; peers and `wisp stat`
/// map it read-only. It outlives the stage, and the next epoch continues it: cursors only grow, nothing is
/// reset. A death at any line leaves a state that the next epoch may take up, because each word is one atomic
/// store.
struct Desk {
  RegionHeader region;
  std::uint32_t stage;  ///< StageId
  std::uint32_t reserved;
  std::uint64_t extra_offset;  ///< the stage's own area (RouterBoard, lease row, LoaderBoard)
  std::uint64_t extra_size;
  EdgePlace edges[kEdges];

  alignas(kLine) std::atomic<std::uint32_t> attached_epoch;  ///< epoch of the process that writes here now
  std::atomic<std::uint32_t> waits_for;                      ///< WaitFor
  std::atomic<std::uint64_t> waits_detail;
  std::atomic<std::uint64_t> waits_since_ns;
  alignas(kLine) std::atomic<std::uint32_t> parked;  ///< 1: asleep, ring the bell after publishing
  Cursor rx_head[kEdges];  ///< messages consumed, as consumer of that edge: advanced after the effect
  Cursor tx_tail[kEdges];  ///< messages published, as producer of that edge: a hint, the truth is `seq`
  alignas(kLine) std::atomic<std::uint64_t> counter[stats::kCounterCells];
  stats::Histogram hop[kEdges];  ///< publication to first look, as consumer
  std::atomic<std::uint64_t> flight_next;
  stats::FlightEvent flight[stats::kFlightEvents];

  void add(stats::Counter c, std::uint64_t n = 1) {
    auto& cell = counter[static_cast<std::uint32_t>(c)];
    cell.store(cell.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void set(stats::Counter c, std::uint64_t n) {
    counter[static_cast<std::uint32_t>(c)].store(n, std::memory_order_relaxed);
  }
  std::uint64_t get(stats::Counter c) const {
    return counter[static_cast<std::uint32_t>(c)].load(std::memory_order_relaxed);
  }
};

template <class T>
T* extra_of(Desk* d) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(d) + d->extra_offset);
}
template <class T>
const T* extra_of(const Desk* d) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(d) + d->extra_offset);
}

/// The loader's own area.
struct LoaderBoard {
  /// slot + 1 of the victim whose lease must end; compute rings after clearing that lease. 0 = none.
  std::atomic<std::uint64_t> waits_for_lease;
  std::atomic<std::uint32_t> backend;  ///< 1 io_uring, 2 pread pool, 3 ghost (tests)
  std::atomic<std::uint32_t> direct;   ///< 1 where O_DIRECT is in use
  std::atomic<std::uint32_t> locked;   ///< 1 where slab and dense are mlocked
  std::atomic<std::uint32_t> reads_in_flight;
  /// Slots with an expert that nobody has asked for yet; FILLING in slabdir.
  std::atomic<std::uint32_t> read_ahead;
  std::atomic<std::uint64_t> slab_in_memory;  ///< bytes from the front of the slab that memory backs
  std::atomic<std::uint64_t> huge_bytes;      ///< of slab and dense, in huge pages; known at the end of that
};

/// The router's own area: a word per journal record, the request to give up (0 = none). Compute polls it per
/// expert.
struct RouterBoard {
  std::atomic<std::uint64_t> next_step;  ///< number of the next step to publish (= steps published so far)
  std::atomic<std::uint32_t> active;
  std::atomic<std::uint32_t> queued;
  alignas(kLine) std::atomic<std::uint64_t> cancel[1];  ///< [records]
};

/// Bytes of a desk and places of its rings, given its arenas and its own area.
struct DeskPlan {
  std::uint64_t arena_bytes[kEdges] = {};  ///< for the edges this stage produces
  std::uint64_t extra_bytes = 0;
};
std::uint64_t desk_size(StageId s, const DeskPlan& plan);
/// Initialises a zeroed desk region (launcher only).
void init_desk(void* base, StageId s, const DeskPlan& plan, std::uint64_t run_id, std::uint64_t generation);

}  // namespace wisp::shm
