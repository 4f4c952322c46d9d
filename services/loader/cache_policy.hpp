#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace wisp::loader {

/// Which experts stay: a pure class without clock, I/O or randomness, the same for the loader and for the
/// offline simulator. It knows residents by key (layer << 16 | expert) and the current touch; it does not
/// know leases, reads or words: whoever asks for a victim excludes the slots that cannot be taken now.
///
/// Choice of a victim, in this order: a free slot; the resident outside the touched set whose next use is
/// expected last; a member of the set that was served already, oldest first. The expectation comes from the
/// probability that a row chooses the expert (a decayed frequency mixed with recency) and from the distance
/// of its layer, so that a cache smaller than one token's experts still hits, where LRU falls to nothing.
///
/// Not thread-safe. Equal calls in equal order give equal choices.
class CachePolicy {
 public:
  struct Shape {
    std::uint32_t slots = 0;
    std::uint32_t layers = 0;
    std::uint32_t experts = 0;  ///< per layer
    std::uint32_t top_k = 1;    ///< choices a row makes in a layer: how rows are counted
  };
  /// One distinct expert of a touch.
  struct Member {
    std::uint32_t key = 0;
    std::uint32_t rows = 1;  ///< how many rows chose it
  };
  /// A slot to fill. `evicts`: it holds `key`, which has to go first.
  struct Choice {
    std::uint32_t slot = 0;
    bool evicts = false;
    std::uint32_t key = 0;
  };
  using Excluded = std::function<bool(std::uint32_t slot)>;

  /// All slots begin free.
  explicit CachePolicy(const Shape& shape);

  const Shape& shape() const { return shape_; }
  bool valid(std::uint32_t key) const;

  /// Makes `set` (valid keys, in order of first appearance) the current touch of `step`. Returns for each
  /// member whether it was in the table: a hit. `count` = false (a touch sent again) leaves the frequencies
  /// alone. Misses are then placed in set order by choose() and insert().
  std::vector<bool> admit(std::uint64_t step, std::uint32_t layer, std::span<const Member> set,
                          bool count = true);

  /// The next slot to fill, or nothing where every candidate is excluded. Changes no residency.
  std::optional<Choice> choose(const Excluded& excluded = {});

  /// `key` lives in `slot` from now on (its read has started, or a rebuild found it). The slot must be free,
  /// the key valid and not resident.
  void insert(std::uint32_t slot, std::uint32_t key);
  /// `slot` is free: its expert was evicted or its read failed. No-op for a slot that holds nothing.
  void remove(std::uint32_t slot);
  /// A member of the current set was handed out: it may be evicted for a later member. No-op for other keys.
  void serve(std::uint32_t key);

  /// `slot` cannot be used (a dead loader's reads may still land in it); its expert, if any, is forgotten.
  void withdraw(std::uint32_t slot);
  /// A withdrawn slot is free again.
  void restore(std::uint32_t slot);

  std::optional<std::uint32_t> slot_of(std::uint32_t key) const;
  std::uint32_t residents() const { return residents_; }
  std::uint32_t withdrawn() const { return withdrawn_; }

 private:
  enum class Use : std::uint8_t { kFree, kResident, kWithdrawn };
  struct Ranked {
    double score;           ///< expected layers until the next use
    std::uint64_t touched;  ///< touch number of the last use: ties go to the older
    std::uint32_t slot;
    std::uint32_t key;
  };

  std::size_t place(std::uint32_t key) const;
  double decay(std::uint64_t rows) const;
  bool in_set(std::uint32_t key) const { return set_stamp_[place(key)] == touch_; }
  double expected_wait(std::uint32_t key) const;
  void rank();
  bool extend_ranking();
  std::optional<Choice> choose_free(const Excluded& excluded);
  std::optional<Choice> choose_outside(const Excluded& excluded);
  std::optional<Choice> choose_served(const Excluded& excluded) const;

  Shape shape_;
  std::vector<Use> use_;                   // [slots]
  std::vector<std::uint32_t> slot_key_;    // [slots], where resident
  std::vector<std::uint32_t> free_;        // may hold slots that are no longer free; checked when taken
  std::vector<std::uint32_t> key_slot_;    // [layers * experts], slot + 1 or 0
  std::vector<float> frequency_;           // [layers * experts], decayed count of rows, as of counted_at_
  std::vector<std::uint64_t> counted_at_;  // [layers * experts], row clock
  std::vector<std::uint64_t> touched_;     // [layers * experts], touch number
  std::vector<std::uint64_t> set_stamp_;   // [layers * experts], touch number whose set it was in
  std::vector<std::uint32_t> served_;      // members of the set, oldest first
  std::vector<Ranked> ranking_;            // residents outside the set
  std::vector<std::uint32_t> layer_residents_;  // [layers], scratch of rank()
  std::size_t ranked_ = 0;                      // prefix of ranking_ that is in order
  bool ranking_valid_ = false;
  std::vector<float> decay_table_;
  std::uint64_t touch_ = 1;  // 0 in the tables means never
  std::uint64_t rows_ = 0;   // row clock: rows of all steps so far
  std::uint64_t step_ = ~0ULL;
  std::uint32_t layer_ = 0;
  std::uint32_t residents_ = 0;
  std::uint32_t withdrawn_ = 0;
};

}  // namespace wisp::loader
