#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace wisp::text {

/// Working memory of Bpe, kept between pieces so that most need no allocation.
struct BpeScratch {
  struct Symbol {
    std::uint32_t id;
    std::uint32_t previous, next;  // positions; kNone at the ends; a merged-away symbol has next == kGone
  };
  struct Candidate {
    std::uint64_t order;  // rank << 32 | position: the smallest is merged next
    std::uint32_t left, right, merged;
  };
  std::vector<std::uint32_t> initial;  // ids before any merge
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

/// Byte-pair merges over token ids.
class Bpe {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  // Up to so many ids a scan for the lowest rank is quicker than a heap.
  static constexpr std::size_t kShort = 48;

  Bpe() { byte_ids_.fill(kNone); }

  void set_byte(std::uint8_t byte, std::uint32_t id) { byte_ids_[byte] = id; }
  std::uint32_t byte_id(std::uint8_t byte) const { return byte_ids_[byte]; }

  /// Room for `count` merges; call once, before add_merge.
  void reserve(std::size_t count);

  /// `left` then `right` becomes `merged`; lower ranks first, of equal ones the leftmost. A repeated pair
  /// takes the later rank.
  void add_merge(std::uint32_t left, std::uint32_t right, std::uint32_t rank, std::uint32_t merged);

  /// After the last add_merge and set_byte: makes the table of pairs of bytes.
  void finish();

  /// Appends the ids of `piece` (raw bytes, fewer than 2^31); those without an id are dropped. n log n.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<std::uint32_t>& out) const;

  /// Appends what becomes of the ids in `scratch.initial`.
  void merge(BpeScratch& scratch, std::vector<std::uint32_t>& out) const;

  /// One merge, by ids.
  struct Merge {
    std::uint32_t left = 0, right = 0, merged = 0;
    bool operator==(const Merge&) const = default;
  };
  /// All of them, those of lower rank first.
  std::vector<Merge> merges() const;

 private:
  struct Pair {
    std::uint32_t rank = kNone, merged = kNone;
  };
  struct Entry {
    std::uint32_t left = kNone, right = kNone;
    Pair pair;
  };

  Pair find(std::uint32_t left, std::uint32_t right) const;
  std::size_t slot_of(std::uint32_t left, std::uint32_t right) const;
  void merge_few(std::uint32_t* ids, Pair* pairs, std::size_t count, std::vector<std::uint32_t>& out) const;
  void merge_many(BpeScratch& scratch, std::vector<std::uint32_t>& out) const;

  std::array<std::uint32_t, 256> byte_ids_{};
  std::vector<Pair> byte_pairs_;  // [256 * 256] by the first byte and the second
  std::vector<Entry> table_;      // open addressing, a power of two, at most half full
};

}  // namespace wisp::text
