#pragma once
#include <atomic>
#include <cstdint>

#include "slab/slot_word.hpp"

namespace wisp::slab {

/// A reader's lease row: one generation per slot in the reader's own desk, 0 = none. A hazard pointer across
/// processes: nothing is counted, so nothing leaks, and the row of a dead epoch is simply ignored.
struct LeaseRow {
  std::atomic<std::uint64_t> generation[1];  ///< [slots]
};

/// Leases `slot` if it holds `key` and is READY. Returns the generation, or 0 if it could not be leased.
/// Order: write the row, full fence, read the slot word again.
inline std::uint32_t try_lease(LeaseRow* row, const SlabDir* dir, std::uint32_t slot, std::uint32_t key) {
  const SlotEntry& e = dir->entries()[slot];
  const SlotWord seen = SlotWord::unpack(e.word.load(std::memory_order_acquire));
  if (seen.state != SlotState::kReady || seen.key != key) return 0;
  row->generation[slot].store(seen.generation, std::memory_order_seq_cst);
  const SlotWord again = SlotWord::unpack(e.word.load(std::memory_order_seq_cst));
  if (again.state == SlotState::kReady && again.key == key && again.generation == seen.generation)
    return seen.generation;
  row->generation[slot].store(0, std::memory_order_seq_cst);
  return 0;
}

/// Ends a lease. The caller then looks at LoaderBoard::waits_for_lease and rings if its slot is named there.
inline void release_lease(LeaseRow* row, std::uint32_t slot) {
  row->generation[slot].store(0, std::memory_order_seq_cst);
}

}  // namespace wisp::slab
