#pragma once
#include <atomic>
#include <cstdint>

#include "shm/region.hpp"

namespace wisp::slab {

/// States of a slot. DRAINING (filled by a dead loader whose reads may still land) is derived, never stored.
enum class SlotState : std::uint32_t { kFree = 0, kFilling = 1, kReady = 2, kEvicting = 3 };

/// The slot word: state:4 · generation:28 · key:32 in one u64, so that a death never leaves half of it.
struct SlotWord {
  SlotState state = SlotState::kFree;
  std::uint32_t generation = 0;  ///< counts fills of this slot, 28 bits, skips 0
  std::uint32_t key = 0;         ///< layer << 16 | expert

  static constexpr std::uint32_t kGenerationMask = (1u << 28) - 1;
  std::uint64_t pack() const {
    return std::uint64_t{static_cast<std::uint32_t>(state)} << 60 |
           std::uint64_t{generation & kGenerationMask} << 32 | key;
  }
  static SlotWord unpack(std::uint64_t w) {
    return {static_cast<SlotState>(w >> 60), static_cast<std::uint32_t>(w >> 32) & kGenerationMask,
            static_cast<std::uint32_t>(w)};
  }
  static std::uint32_t next_generation(std::uint32_t g) {
    const std::uint32_t n = (g + 1) & kGenerationMask;
    return n == 0 ? 1 : n;
  }
};

/// One slot's entry. Written by the loader alone. Order of a fill: fill_epoch, word = FILLING, reads, checks,
/// bytes, word = READY. Order of an eviction: word = EVICTING, full fence, look at the leases, then FILLING
/// or back to READY of the same generation.
struct SlotEntry {
  std::atomic<std::uint64_t> word;
  std::atomic<std::uint32_t> fill_epoch;  ///< loader epoch that fills or filled it; stored before FILLING
  std::atomic<std::uint32_t> bytes;       ///< payload bytes; stored before READY
};

/// The region `slabdir`: state of every slot, the hint from expert to slot, and whether `dense` is filled.
/// Written by the loader alone; it outlives the loader, and a new one rebuilds its tables from the words.
struct SlabDir {
  shm::RegionHeader region;
  std::uint32_t slots;  ///< written by the launcher before any stage starts, as the three below
  std::uint32_t layers;
  std::uint32_t experts;  ///< per layer
  std::uint32_t reserved;
  std::uint64_t stride;          ///< bytes from slot to slot in the slab
  std::uint64_t entries_offset;  ///< SlotEntry [slots]
  std::uint64_t index_offset;    ///< atomic u32 [layers][experts]: slot + 1 or 0; only a hint
  alignas(shm::kLine)
      std::atomic<std::uint64_t> dense_ready;  ///< 1 once every byte of `dense` is there and checked

  SlotEntry* entries() {
    return reinterpret_cast<SlotEntry*>(reinterpret_cast<char*>(this) + entries_offset);
  }
  const SlotEntry* entries() const {
    return reinterpret_cast<const SlotEntry*>(reinterpret_cast<const char*>(this) + entries_offset);
  }
  std::atomic<std::uint32_t>* index() {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(reinterpret_cast<char*>(this) + index_offset);
  }
  const std::atomic<std::uint32_t>* index() const {
    return reinterpret_cast<const std::atomic<std::uint32_t>*>(reinterpret_cast<const char*>(this) +
                                                               index_offset);
  }
};

std::uint64_t slab_dir_size(std::uint32_t slots, std::uint32_t layers, std::uint32_t experts);
/// Initialises a zeroed region (launcher only).
void init_slab_dir(void* base, std::uint32_t slots, std::uint32_t layers, std::uint32_t experts,
                   std::uint64_t stride, std::uint64_t run_id, std::uint64_t generation);

}  // namespace wisp::slab
