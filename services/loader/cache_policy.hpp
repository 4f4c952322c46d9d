#pragma once
#include <array>
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
/// expected last; a member of the set that was served already, in the order in which they were placed. A
/// prompt at its bound (below) goes through the last two for what is passing alone.
///
/// The expectation. A row's choices are compared, layer by layer, with those of the last rows: what was
/// chosen after rows that resemble this one is likely to be chosen next. That vote is mixed with how often an
/// expert was chosen lately (three decayed counts, the slowest of which a learned cache may seed). From the
/// probability p of the next row and the distance of the expert's layer follows the expected wait, so that a
/// cache smaller than one token's experts still hits, where LRU falls to nothing.
///
/// Prompts. A touch of many rows may want more experts than there are slots, most of them for a row or two.
/// What prompts bring in lives on a share of the slots until a touch of decoding hits it: at that bound a
/// prompt's misses take each other's slots, those of their own set last, and what decoding uses stays.
///
/// Cost of a touch: the overlaps of its members with the history, and scores of its layer's residents alone;
/// nothing depends on the number of all slots, and nothing is allocated once every slot has been filled.
///
/// Not thread-safe. Equal calls in equal order give equal choices.
class CachePolicy {
 public:
  struct Shape {
    std::uint32_t slots = 0;
    std::uint32_t layers = 0;
    std::uint32_t experts = 0;  ///< per layer
    std::uint32_t top_k = 1;    ///< choices a row makes in a layer: how rows are counted
    bool lru = false;           ///< the least recently touched goes, whoever touched it: to compare with
  };
  /// One distinct expert of a touch.
  struct Member {
    std::uint32_t key = 0;
    std::uint32_t rows = 1;  ///< how many rows chose it; 0: guessed ones alone, which is no use of it
  };
  /// A slot to fill. `evicts`: it holds `key`, which has to go first.
  struct Choice {
    std::uint32_t slot = 0;
    bool evicts = false;
    std::uint32_t key = 0;
  };
  /// Whose choices a touch holds. A step with rows of a prompt is a prompt's, whoever decodes beside it.
  enum class Rows : std::uint8_t { kDecode, kPrompt };
  /// What may be done with a slot now. Outside the set every kWait is passed over. The set's members go in
  /// their order: kWait ends the search there, so that the choice does not depend on which read was faster.
  enum class Verdict : std::uint8_t { kTake, kWait, kNever };
  using Look = std::function<Verdict(std::uint32_t slot)>;

  /// All slots begin free.
  explicit CachePolicy(const Shape& shape);

  const Shape& shape() const { return shape_; }
  bool valid(std::uint32_t key) const;

  /// Makes `set` (valid keys of `layer`, in order of first appearance) the current touch. Returns for each
  /// member whether it was in the table, 1 or 0: a hit; valid until the next call. `count` = false (a touch
  /// sent again) leaves the statistics alone. Misses are then placed in set order by choose() and insert().
  std::span<const std::uint8_t> admit(std::uint32_t layer, std::span<const Member> set, bool count = true,
                                      Rows rows = Rows::kDecode);

  /// Counts choices of guessed rows that turned out to stand, as one more pass over the layers: called for
  /// each in ascending order, behind the touches that brought `set`. Changes no residency.
  void kept(std::uint32_t layer, std::span<const Member> set);

  /// The next slot to fill, or nothing where no candidate may be taken now. Changes no residency.
  std::optional<Choice> choose(const Look& look = {});

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

  /// What is known of `key` from elsewhere: `share` of its layer's rows chose it, as if `rows` rows had been
  /// seen. For keys that no touch has counted yet; fades like any count.
  void seed(std::uint32_t key, float share, float rows);

  std::optional<std::uint32_t> slot_of(std::uint32_t key) const;
  std::uint32_t residents() const { return residents_; }
  std::uint32_t withdrawn() const { return withdrawn_; }
  /// Slots that what prompts brought in, and decoding has not used, may take from everything else.
  std::uint32_t most_passing() const;
  std::uint32_t passing() const { return passing_; }

 private:
  /// Tokens of history. A column is one pass over the layers: a token in decoding, a chunk of a prompt.
  static constexpr std::uint32_t kColumns = 256;
  static constexpr std::uint32_t kWords = kColumns / 64;
  enum class Use : std::uint8_t { kFree, kResident, kWithdrawn };
  using Columns = std::array<std::uint64_t, kWords>;
  /// A resident of a layer, as it was scored.
  struct Ranked {
    float wait;             ///< rounds over the layers that its next use is expected to take
    std::uint64_t touched;  ///< touch number of the last use: ties go to the older
    std::uint32_t slot;
    std::uint32_t key;
  };
  struct Layer {
    std::vector<Ranked> order;    ///< longest wait first, as of the last scoring; may hold what has gone
    std::uint32_t head = 0;       ///< entries before this one have gone
    bool stale = false;           ///< to be scored before one of its residents is chosen
    bool arrived = false;         ///< to be scored before the next touch: members of the set came
    std::uint32_t residents = 0;  ///< in the whole cache
    std::uint32_t passing = 0;    ///< of them
    double rows = 0;              ///< row clock: rows that passed this layer
    float seeded_rows = 0;        ///< rows that the seeds stand for, as of the start
    std::uint64_t column = 0;     ///< number of the last column in which it was touched, 0 = never
  };

  std::size_t place(std::uint32_t key) const;
  bool in_set(std::uint32_t key) const { return set_stamp_[place(key)] == touch_; }
  bool holds(const Ranked& r) const { return use_[r.slot] == Use::kResident && slot_key_[r.slot] == r.key; }
  void forget_columns(std::uint32_t layer);
  void compare(std::uint32_t layer, std::span<const Member> set);
  void count(std::uint32_t layer, std::span<const Member> set);
  void score(std::uint32_t layer);
  float expected_wait(const Layer& layer, std::size_t i, float slow_weight) const;
  float slow_count(const Layer& layer, std::size_t i) const;
  void weigh_columns();
  /// Of what choose_outside() and choose_served() may take.
  enum class Among : std::uint8_t { kAll, kPassing };
  std::optional<Choice> choose_free(const Look& look);
  std::optional<Choice> choose_outside(const Look& look, Among among);
  std::optional<Choice> choose_served(const Look& look, Among among);
  std::uint32_t next_outside(Layer& layer, std::uint32_t at, Among among) const;
  Verdict ask(const Look& look, std::uint32_t slot);
  void set_passing(std::uint32_t slot, bool passing);

  Shape shape_;
  std::vector<Use> use_;                 // [slots]
  std::vector<std::uint32_t> slot_key_;  // [slots], where resident
  std::vector<std::uint8_t> passes_;     // [slots] brought in by a prompt, not used by decoding since
  std::vector<std::uint32_t> free_;      // may hold slots that are no longer free; checked when taken
  std::vector<Layer> layers_;
  // per key, [layers * experts]
  std::vector<std::uint32_t> key_slot_;   // slot + 1 or 0
  std::vector<Columns> chosen_;           // columns in which it was chosen
  std::vector<float> slow_;               // decayed count of rows, as of slow_at_
  std::vector<double> slow_at_;           // row clock of its layer
  std::vector<std::uint64_t> touched_;    // touch number
  std::vector<std::uint64_t> set_stamp_;  // touch number whose set it was in
  // per column
  std::vector<std::uint16_t> set_size_;           // [layers * kColumns]
  std::array<float, kColumns> likeness_{};        // by lag: how the last layers resembled those of then
  std::array<float, kColumns> follow_{};          // by column: weight of what was chosen in it, by likeness
  std::array<float, kColumns> recent_{};          // by column: weight by age
  std::array<std::uint16_t, kColumns> common_{};  // scratch of compare()
  float recent_sum_ = 0;
  float follow_sum_ = 0;
  std::uint64_t column_ = 0;  // number of the current one, from 1

  std::vector<Member> counted_;  // of the set, what certain rows chose
  std::vector<std::uint8_t> hits_;
  std::vector<std::uint32_t> order_;   // the set in the order of placing: hits, then misses
  std::vector<std::uint8_t> served_;   // [order_]
  std::vector<std::uint32_t> cursor_;  // [layers], scratch of choose_outside()
  std::vector<float> age_table_, slow_table_;
  std::uint64_t touch_ = 1;  // 0 in the tables means never
  std::uint32_t layer_ = 0;
  Rows rows_ = Rows::kDecode;  // of the current touch
  bool waits_ = false;         // choose() met a candidate that can be had later
  std::uint32_t passing_ = 0;
  std::uint32_t residents_ = 0;
  std::uint32_t withdrawn_ = 0;
};

}  // namespace wisp::loader
