#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.hpp"
#include "model/model_spec.hpp"
#include "ring/messages.hpp"
#include "services/compute/attention_scratch.hpp"
#include "services/compute/int8_buffer.hpp"
#include "services/compute/rope_table.hpp"
#include "services/compute/spans.hpp"
#include "services/compute/thread_pool.hpp"
#include "services/compute/weights.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::compute {

/// KV pages in memory: page p begins at base + p * page_bytes; layout as shm::Kv says.
struct KvPages {
  std::byte* base = nullptr;
  std::uint64_t page_bytes = 0;
  kernels::KvFormat format = kernels::KvFormat::kF32;
  std::uint64_t hidden_at = 0;  ///< where each page has room for the rows behind the last norm; 0: nowhere

  /// Where the hidden row of slot `at` of page `page` lies: [hidden] bf16.
  std::byte* hidden(std::uint32_t page, std::uint32_t at, std::uint32_t width) const {
    return base + page * page_bytes + hidden_at + std::uint64_t{at} * width * sizeof(std::uint16_t);
  }
  /// Where number `at` of page `page` lies.
  std::byte* number(std::uint32_t page, std::uint64_t at) const {
    return base + page * page_bytes + at * kernels::kv_bytes(format);
  }
};

/// Which rows of a sequence are to give logits: none, the last certain one and the guessed ones behind it,
/// all.
enum class Logits : std::uint8_t { kNone, kLastRow, kAllRows };

/// Rows [start, start + ids.size()) of one sequence, and what became of them.
struct Sequence {
  std::span<const std::uint32_t> ids;
  std::span<const std::uint32_t> pages;  ///< cover all positions up to the last row
  std::uint32_t start = 0;
  Logits logits = Logits::kNone;
  std::string error;  ///< not empty: this sequence failed, the others did not
  /// Latent attention: rows at positions below this take the naive form (wisp/kernels/naive.hpp).
  std::uint32_t naive_until = 0;
  /// So many of the last ids are guessed: what their rows choose counts nowhere until kept() says that they
  /// stand.
  std::uint32_t drafts = 0;
  /// Drafts from this one on have no logits: an expert that none but they chose could not be had.
  std::uint32_t draft_failed = UINT32_MAX;
  /// Of a draft head: for each id the row that is joined with its embedding, [ids, hidden].
  std::span<const float> hidden = {};

  std::uint32_t end() const { return start + static_cast<std::uint32_t>(ids.size()); }
};

/// An expert that lies in memory now, as its place in the set that was asked for.
struct ReadyExpert {
  std::uint32_t member = 0;
  const std::byte* extent = nullptr;
};

/// Where experts come from: the slab by leases and messages, or the files.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  /// What the rows of the next visit chose, for whoever writes it down: both [rows, top_k], by rank. Valid
  /// until that visit ends.
  virtual void choices(std::span<const std::uint32_t> experts, std::span<const float> weights) {
    (void)experts, (void)weights;
  }
  using Use = FunctionRef<void(std::span<const ReadyExpert>)>;
  using Fail = FunctionRef<void(std::uint32_t member, const std::string& why)>;
  using Cancelled = FunctionRef<bool()>;
  /// Brings every member of `set` (distinct experts of `layer`) once, in any order and in any grouping, to
  /// `use` or to `fail`. An extent is valid during the call alone. Returns false if `cancelled()` became true
  /// on the way.
  virtual bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use,
                     Fail fail, Cancelled cancelled) = 0;
  /// What guessed rows chose in an earlier visit to `layer`, of those alone that turned out to stand.
  virtual void kept(std::uint32_t /*layer*/, std::span<const ring::TouchMember> /*set*/) {}
  /// Whether guesses are of use.
  virtual bool wants_guesses() const { return false; }
  /// A later visit to `layer` may ask for these, the likeliest first. Called from within visit(), while it
  /// waits.
  virtual void guess(std::uint32_t /*layer*/, std::span<const std::uint32_t> /*experts*/) {}
};

/// The forward pass of every family over shared blocks. Holds scratch, no state between calls but KV pages.
class Forward {
 public:
  /// `max_rows`: rows of one call. `ctx`: longest sequence. `fast`: the profile of that name. The references
  /// outlive this object.
  Forward(const model::ModelSpec& spec, const Weights& weights, KvPages kv, const kernels::Kernels& kernels,
          ThreadPool& pool, std::uint32_t max_rows, std::uint32_t ctx, bool fast = false);

  /// Computes all rows of all sequences: writes their KV rows, and logits where asked. Returns false if
  /// cancelled.
  bool run(std::span<Sequence> sequences, ExpertSource& experts, ExpertSource::Cancelled cancelled);
  /// Tells `experts` what guessed rows of the last run chose: of sequence i the first accepted[i].
  void keep_drafts(std::span<const Sequence> sequences, std::span<const std::uint32_t> accepted,
                   ExpertSource& experts);
  /// Makes room for the logits of `rows` rows; a call that wants more makes it itself.
  void reserve_logits(std::uint32_t rows);
  /// Logits of the sequence with index i in the last run, which wanted them: [1 + drafts, vocab] from its
  /// last certain row on, or [rows, vocab] of all.
  std::span<const float> logits(std::size_t i) const;
  /// What those logits were taken from: the same rows, [rows, hidden], behind the last norm. Until the next
  /// run.
  std::span<const float> normed(std::size_t i) const;
  /// Where the time of a call goes. The caller restarts it.
  Spans& spans() { return spans_; }

 private:
  struct Row {
    std::uint32_t sequence;
    std::uint32_t position;
    bool guessed = false;
  };
  /// Where a sequence's logits lie in logits_.
  struct LogitRows {
    std::uint32_t first = 0, count = 0;
  };
  /// Rows [begin, end) that stand side by side in one form of latent attention; naive ones are of one
  /// sequence.
  struct Stretch {
    std::uint32_t begin;
    std::uint32_t end;
    bool naive;
    std::uint32_t rows() const { return end - begin; }
  };
  /// Rows [begin, end) of one sequence, whose first seen position lies in one page.
  struct RowBlock {
    std::uint32_t begin;
    std::uint32_t end;
    std::uint32_t first_page;
  };
  /// Rows that a product takes, as f32 and, where it takes bytes, as those (else codes null).
  struct Input {
    const float* x = nullptr;
    kernels::Int8Rows bytes;
  };
  /// An expert at work.
  struct ExpertJob {
    ExpertWeights weights;
    std::uint32_t first;  ///< place in product_
    std::uint32_t rows;
    std::uint32_t local;  ///< row in gathered_, gate_ and up_
    Input gate_in, up_in;
  };
  /// Rows of a step whose next choice is guessed; more of them need most experts anyway.
  static constexpr std::uint32_t kGuessRows = 8;
  /// Items that the heads of a row are shared out to in latent attention.
  static constexpr std::uint32_t kHeadGroups = 4;
  /// One column of a tile of 16 rows of a f32 matrix (wisp/kernels/weight.hpp).
  struct alignas(64) TileColumn {
    float row[kernels::kTileRows];
  };
  void lay_out_rows(std::span<const Sequence> sequences);
  void embed(std::span<const Sequence> sequences);
  void attention(std::uint32_t layer, std::span<const Sequence> sequences);
  void latent_attention(std::uint32_t layer, std::span<const Sequence> sequences);
  /// Norm, rotation and page of the latent of row r.
  void finish_latent(std::uint32_t layer, std::size_t r, std::span<const Sequence> sequences);
  void attend_absorbed(std::uint32_t layer, std::span<const Sequence> sequences, const Stretch& rows);
  void mix_latents(std::uint32_t layer, std::span<const Sequence> sequences, const Stretch& rows);
  /// attn_ of naive rows, with keys and values of a few heads at a time.
  void attend_naive(std::uint32_t layer, std::span<const Sequence> sequences, const Stretch& rows);
  /// The matrices of `head` into place `slot` of head_k_up_ and head_v_up_.
  void widen_head(std::uint32_t layer, std::uint32_t head, std::uint32_t slot, AttentionScratch& own);
  /// Keys and values of pages [begin, end) of `s` for the head in `slot`, from their latents.
  void rebuild(std::uint32_t layer, const Sequence& s, std::uint32_t slot, std::uint32_t begin,
               std::uint32_t end, AttentionScratch& own);
  /// attn_ of naive rows [begin, end) for `head`, whose keys and values are in `slot`.
  void attend_rows(std::uint32_t begin, std::uint32_t end, std::uint32_t head, std::uint32_t slot,
                   AttentionScratch& own);
  /// Positions below `count` that row r may not see, by the indexer's choice; they lie in `own`.
  std::span<const std::uint32_t> unseen_by(std::size_t r, std::uint32_t count, AttentionScratch& own) const;
  /// Of the groups that the heads of a row are shared out to in latent attention.
  std::uint32_t heads_of_group() const { return (spec_.attention.heads + kHeadGroups - 1) / kHeadGroups; }
  /// Queries that a thread answers at a time.
  std::uint32_t queries_at_once() const;
  /// Rows whose queries those are, in grouped-query attention.
  std::uint32_t rows_at_once() const;
  /// Of q . k in latent attention.
  float latent_scale() const;
  /// Where keys and values of page `page` of a sequence lie for the head in `slot`.
  float* naive_keys(std::uint32_t slot, std::uint32_t page);
  float* naive_values(std::uint32_t slot, std::uint32_t page);
  std::byte* latent_page(std::uint32_t page, std::uint32_t layer) const;
  std::byte* index_page(std::uint32_t page, std::uint32_t layer) const;
  /// Chooses what each row sees in this layer and in those that use its choice.
  void choose_positions(std::uint32_t layer, std::span<const Sequence> sequences);
  void finish_index_key(std::uint32_t layer, std::size_t r, std::span<const Sequence> sequences);
  /// Scores of positions [begin, end) of s for row r, to `scores`; `begin` is that of a page.
  void score_positions(std::size_t r, std::uint32_t layer, const Sequence& s, std::uint32_t begin,
                       std::uint32_t end, AttentionScratch& own, float* scores);
  /// Keeps the best of the `count` scores in own.index_scores as what row r sees.
  void keep_best(std::size_t r, std::uint32_t count, AttentionScratch& own);
  bool sees(std::size_t row, std::uint32_t position) const {
    return (chosen_positions_[row * position_words_ + position / 64] >> position % 64 & 1) != 0;
  }
  /// For each head, y = its `rows_per_head` rows of w times its part of x, for the rows of a stretch.
  void linear_per_head(const kernels::WeightView& w, std::uint32_t rows_per_head, const float* x,
                       std::size_t x_stride, std::size_t x_head, float* y, const Stretch& rows);
  void clip(float* x, std::size_t n) const;
  /// What stands between the products and attention, for one KV head of row r and its query heads: clip,
  /// norm, rotation, the row's place in the pages.
  void finish_heads(std::uint32_t layer, std::size_t r, std::uint32_t kv_head,
                    std::span<const Sequence> sequences);
  /// The first position that a row at `position` sees.
  std::uint32_t first_seen(std::uint32_t layer, std::uint32_t position) const;
  /// Fills blocks_ for this layer.
  void block_rows(std::uint32_t layer);
  void attend(std::uint32_t layer, std::span<const Sequence> sequences);
  void attend_block(std::uint32_t layer, const RowBlock& b, std::uint32_t kv_head,
                    std::span<const Sequence> sequences, AttentionScratch& own);
  /// y [rows, hidden] = the dense MLP, or the shared expert, of `layer`, added to `sum` where there is one.
  void mlp(std::uint32_t layer, float* y, float* sum);
  bool moe_ffn(std::uint32_t layer, std::span<Sequence> sequences, ExpertSource& experts,
               ExpertSource::Cancelled cancelled);
  /// Both [n]: gate becomes what `down` takes.
  void glu(float* gate, const float* up, std::size_t n) const;
  void route(std::uint32_t layer, std::uint32_t rows);
  /// Tells `experts` what the next layer's router would choose if nothing more were added to x_ than what
  /// the members that have come add. Uses the calling thread alone.
  void guess_next(std::uint32_t layer, ExpertSource& experts);
  /// x_ += the experts' products in rank order, then the shared expert, which must be in shared_.
  void add_experts();
  void multiply_experts(std::span<const ReadyExpert> ready);
  /// Whether experts want their inputs in an order of their own.
  bool has_order() const;
  /// The inputs of a job into rows [at, at + job.rows) of gathered_ and what belongs to it.
  void gather(ExpertJob& job, std::uint32_t at);
  /// Tiles [begin, end) of gate [rows, width]: what `down` takes; and those of up, which are used up.
  void gated(const ExpertWeights& w, const Input& gate_in, const Input& up_in, std::uint32_t rows,
             float* gate, float* up, std::uint32_t begin, std::uint32_t end) const;
  /// Writes the rows behind the last norm into the pages.
  void keep_hidden(std::span<const Sequence> sequences);
  void head(std::span<Sequence> sequences);

  void norm_rows(const std::vector<float>& weight);
  /// The rows as bytes where the profile multiplies such a matrix so; else nothing (codes null).
  kernels::Int8Rows bytes_for(const kernels::WeightView& w, const float* x, std::uint32_t rows,
                              Int8Buffer& buffer);
  /// A product of tiles [begin, end), of `bytes` where there are any, else of x.
  void product(const kernels::WeightView& w, const float* x, const kernels::Int8Rows& bytes,
               std::uint32_t rows, float* y, std::uint32_t begin, std::uint32_t end) const;
  /// y [rows, w.rows] = x W^T + b; and `sum`, of the same shape, += y where there is one.
  struct Product {
    const Linear& linear;
    float* y;
    float* sum = nullptr;
  };
  /// Products of one input x [rows, cols], shared among the threads by tiles in one loop where they take the
  /// input in one form.
  void products(const float* x, std::initializer_list<Product> all, std::uint32_t rows);
  /// Whether a and b may share an input: no order of their own, and bytes of one kind.
  bool same_input(const kernels::WeightView& a, const kernels::WeightView& b) const;
  /// Tiles that an item takes of `matrices` of `tiles` tiles each, with `cost` multiply-adds a tile.
  std::uint32_t tiles_of_item(std::uint32_t tiles, std::uint32_t matrices, std::uint64_t cost) const;
  /// fn(r) for each row, shared among the threads; `cost` is of one row.
  void for_rows(std::uint32_t rows, std::uint64_t cost, FunctionRef<void(std::size_t)> fn);
  std::byte* key_page(std::uint32_t page, std::uint32_t layer, std::uint32_t kv_head) const;
  std::byte* value_page(std::uint32_t page, std::uint32_t layer, std::uint32_t kv_head) const;

  const model::ModelSpec& spec_;
  const Weights& weights_;
  KvPages kv_;
  const kernels::Kernels& k_;
  ThreadPool& pool_;
  std::uint32_t max_rows_;
  bool fast_;
  std::uint32_t ctx_;
  RopeTables rope_;
  Spans spans_;
  std::vector<AttentionScratch> attention_;  ///< [threads]

  // scratch, [max_rows, ...] f32 unless said otherwise
  std::vector<Row> rows_;
  std::vector<Stretch> stretches_;                 ///< all rows, in order
  std::vector<RowBlock> blocks_;                   ///< all rows, in order
  bool single_ = false;                            ///< every sequence of this call has one row
  bool decode_ = false;                            ///< the same but for guessed ones
  std::vector<float> x_;                           ///< [rows, hidden] residual stream
  std::vector<float> joined_;                      ///< [rows, 2 hidden] what a draft head joins
  std::vector<float> normed_;                      ///< [rows, hidden]
  std::vector<float> q_, k_rows_, v_rows_, attn_;  ///< [rows, heads or kv_heads, head_dim]
  std::vector<std::uint64_t> layer_at_;            ///< [layers] first number of a layer in a page, / 16
  std::vector<float> index_q_;                     ///< [rows, indexer heads, its head_dim]
  std::vector<float> index_k_;                     ///< [rows, its head_dim]
  std::vector<float> index_weights_;               ///< [rows, indexer heads]
  std::size_t position_words_ = 0;
  std::vector<std::uint64_t> chosen_positions_;  ///< [rows, position_words_] bits
  std::vector<float> q_latent_;                  ///< [rows, q_rank]
  std::vector<float> folded_;                    ///< [rows, heads, key_up_rows] queries against latents
  std::vector<float> mixed_;                     ///< [rows, heads, kv_rank] mixed latents
  // For naive rows, empty until the first of them; heads: kNaiveHeads at a time.
  std::size_t naive_pages_ = 0;                   ///< pages of a whole context
  std::vector<float> naive_keys_, naive_values_;  ///< [heads, pages, head_dim, 16], [heads, pages, 16, value]
  std::vector<TileColumn> head_k_up_, head_v_up_;  ///< [heads, tiles of nope or value, kv_rank]
  std::vector<float> block_;                       ///< [rows, hidden] output of a block
  std::vector<float> gate_, up_;                   ///< [rows, width]
  std::vector<float> router_;                      ///< [rows, experts]
  std::vector<float> route_scratch_;               ///< [2 * experts]
  std::vector<std::uint32_t> chosen_;              ///< [rows, top_k]
  std::vector<float> chosen_weight_;               ///< [rows, top_k]
  std::vector<std::uint8_t> came_;                 ///< [set] 1: multiplied
  std::vector<float> guess_x_, guess_scores_;      ///< [hidden], [experts] of a row
  std::vector<std::uint32_t> guess_ids_;           ///< [kGuessRows, top_k]
  std::vector<float> guess_weight_;                ///< [top_k]
  std::vector<std::uint32_t> guess_;               ///< of all rows, the likeliest first
  std::vector<float> shared_;                      ///< [rows, hidden] output of the shared expert
  std::vector<float> mix_;                         ///< [rows] its gate
  std::vector<float> product_;                     ///< [rows * top_k, hidden], grouped by expert
  std::vector<std::uint32_t> product_of_;          ///< [rows, top_k] -> place in product_
  std::vector<float> gathered_;                    ///< [rows, hidden] inputs of experts at work
  Int8Buffer row_bytes_;                           ///< normed_ for experts
  kernels::Int8Rows row_bytes_now_;                ///< of this layer
  Int8Buffer bytes_, up_bytes_;                    ///< inputs in bytes; of up where its order is its own
  std::vector<float> ordered_;                     ///< [rows, ordered_width] inputs in a matrix's own order
  std::vector<ring::TouchMember> set_;
  std::vector<std::int32_t> member_of_;       ///< [experts] place in set_, -1 where it is not in it
  std::vector<std::uint32_t> member_rows_;    ///< [set] rows that chose it, guessed ones too
  std::vector<std::uint16_t> draft_choices_;  ///< [layers, guessed rows of the last run, top_k]
  std::uint32_t draft_rows_ = 0;              ///< of the last run
  std::vector<std::uint32_t> member_first_;   ///< [set + 1] first place in product_
  std::vector<std::uint32_t> member_next_;    ///< [set] next free place
  std::vector<ExpertJob> jobs_;
  std::vector<std::uint32_t> place_row_;  ///< [rows * top_k] row of a place in product_
  std::vector<float> logits_;             ///< [rows that were wanted or reserved, vocab]
  std::vector<LogitRows> logits_of_;      ///< [sequences]
};

}  // namespace wisp::compute
