#include "services/compute/forward.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "shm/shared_words.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::compute {

namespace {
/// Multiply-adds of an item, at the most: of int4 weights half a MiB, a run of memory that is long beside
/// what it takes to begin one.
constexpr std::uint64_t kItemCost = 1u << 20;
/// Matrices of one loop.
constexpr std::size_t kMostProducts = 4;
}  // namespace

Forward::Forward(const model::ModelSpec& spec, const Weights& weights, KvPages kv,
                 const kernels::Kernels& kernels, ThreadPool& pool, std::uint32_t max_rows, std::uint32_t ctx,
                 bool fast)
    : spec_(spec),
      weights_(weights),
      kv_(kv),
      k_(kernels),
      pool_(pool),
      max_rows_(max_rows),
      fast_(fast),
      ctx_(ctx),
      rope_(spec.attention.rope, ctx) {
  const model::AttentionSpec& a = spec.attention;
  const std::size_t n = max_rows;
  for (std::uint32_t t = 0; t < pool.threads(); ++t) attention_.emplace_back(a, ctx, queries_at_once());
  rows_.reserve(n);
  stretches_.reserve(2 * n);  // a sequence has two at most
  blocks_.reserve(n);
  logits_of_.reserve(n);
  std::uint32_t width = spec.moe_width;
  for (const model::LayerSpec& l : spec.layers)
    width = std::max(width, l.moe ? spec.shared.width : l.dense_width);
  for (auto* v : {&x_, &normed_, &block_, &gathered_}) v->resize(n * spec.hidden);
  if (spec.draft_head) joined_.resize(2 * n * spec.hidden);
  q_.resize(n * a.heads * a.head_dim);
  if (a.is_latent()) {
    attn_.resize(n * a.heads * a.value_up_rows());
    k_rows_.resize(n * a.kv_width());
    q_latent_.resize(n * a.latent.q_rank);
    folded_.resize(n * a.heads * a.key_up_rows());
    mixed_.resize(n * a.heads * a.latent.kv_rank);
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      layer_at_.push_back(at);
      at += spec.kv_width(i);
    }
    if (a.indexer.heads != 0) {
      index_q_.resize(n * a.indexer.heads * a.indexer.head_dim);
      index_k_.resize(n * a.indexer.head_dim);
      index_weights_.resize(n * a.indexer.heads);
      position_words_ = (std::size_t{ctx} + 63) / 64;
      chosen_positions_.resize(n * position_words_);
    }
  } else {
    attn_.resize(q_.size());
    k_rows_.resize(n * a.kv_heads * a.head_dim);
    v_rows_.resize(k_rows_.size());
  }
  ordered_.resize(n * spec.ordered_width);
  if (fast) {
    bytes_.resize(n, spec.widest_input());
    if (spec.moe_layers() != 0) row_bytes_.resize(n, spec.hidden);
    if (spec.ordered_width != 0) up_bytes_.resize(n, spec.hidden);
  }
  gate_.resize(n * width);
  up_.resize(n * width);
  if (spec.moe_layers() == 0) return;
  router_.resize(n * spec.router.experts);
  route_scratch_.resize(2 * std::size_t{spec.router.experts});
  chosen_.resize(n * spec.router.top_k);
  chosen_weight_.resize(chosen_.size());
  product_.resize(chosen_.size() * spec.hidden);
  guess_x_.resize(spec.hidden);
  guess_scores_.resize(spec.router.experts);
  guess_ids_.resize(std::size_t{kGuessRows} * spec.router.top_k);
  guess_weight_.resize(spec.router.top_k);
  guess_.reserve(guess_ids_.size());
  came_.reserve(spec.router.experts);
  if (spec.shared.width != 0) shared_.resize(n * spec.hidden);
  mix_.resize(spec.shared.gated ? n : 0);
  product_of_.resize(chosen_.size());
  place_row_.resize(chosen_.size());
  member_of_.resize(spec.router.experts);
  set_.reserve(spec.router.experts);
  member_rows_.reserve(spec.router.experts);
  draft_choices_.resize(spec.layers.size() * ring::kMostDraftedInStep * spec.router.top_k);
  member_first_.reserve(std::size_t{spec.router.experts} + 1);
  member_next_.reserve(spec.router.experts);
  jobs_.reserve(spec.router.experts);
}

bool Forward::run(std::span<Sequence> sequences, ExpertSource& experts, ExpertSource::Cancelled cancelled) {
  lay_out_rows(sequences);
  embed(sequences);
  for (std::uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    spans_.enter(Span::kAttention);
    norm_rows(w.attn_norm);
    if (spec_.attention.is_latent())
      latent_attention(layer, sequences);
    else
      attention(layer, sequences);
    spans_.enter(spec_.layers[layer].moe ? Span::kRouter : Span::kExperts);
    norm_rows(w.ffn_norm);
    if (spec_.layers[layer].moe) {
      if (!moe_ffn(layer, sequences, experts, cancelled)) return false;
    } else {
      mlp(layer, block_.data(), x_.data());
    }
  }
  spans_.enter(Span::kHead);
  if (kv_.hidden_at != 0) keep_hidden(sequences);
  head(sequences);
  spans_.enter(Span::kOther);
  return true;
}

void Forward::lay_out_rows(std::span<const Sequence> sequences) {
  rows_.clear();
  stretches_.clear();
  single_ = decode_ = true;
  draft_rows_ = 0;
  const auto add = [&](std::uint32_t s, std::uint32_t begin, std::uint32_t end, bool naive) {
    if (begin >= end) return;
    const auto first = static_cast<std::uint32_t>(rows_.size());
    for (std::uint32_t p = begin; p < end; ++p) rows_.push_back({s, p});
    if (naive || stretches_.empty() || stretches_.back().naive) stretches_.push_back({first, first, naive});
    stretches_.back().end = static_cast<std::uint32_t>(rows_.size());
  };
  for (std::uint32_t s = 0; s < sequences.size(); ++s) {
    const Sequence& q = sequences[s];
    const std::uint32_t end = q.end();
    const std::uint32_t cut = std::clamp(q.naive_until, q.start, end);
    single_ = single_ && q.ids.size() == 1;
    decode_ = decode_ && q.ids.size() == 1 + std::size_t{q.drafts};
    add(s, q.start, cut, true);
    add(s, cut, end, false);
    for (std::uint32_t d = 0; d < q.drafts; ++d) rows_[rows_.size() - 1 - d].guessed = true;
    draft_rows_ += q.drafts;
  }
  WISP_CHECK(draft_rows_ <= ring::kMostDraftedInStep);
  WISP_CHECK(rows_.size() <= max_rows_);
}

void Forward::embed(std::span<const Sequence> sequences) {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Sequence& s = sequences[rows_[r].sequence];
    kernels::gather_row(weights_.embed, s.ids[rows_[r].position - s.start], x_.data() + r * spec_.hidden);
  }
  if (!spec_.draft_head) return;
  const std::uint32_t h = spec_.hidden;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Sequence& s = sequences[rows_[r].sequence];
    WISP_CHECK(s.hidden.size() == s.ids.size() * h);
    const float* const given = s.hidden.data() + std::size_t{rows_[r].position - s.start} * h;
    float* const out = joined_.data() + r * 2 * h;
    k_.rms_norm(x_.data() + r * h, weights_.join_embed_norm.data(), spec_.norm_eps, h, out);
    k_.rms_norm(given, weights_.join_hidden_norm.data(), spec_.norm_eps, h, out + h);
  }
  products(joined_.data(), {{weights_.join, x_.data()}}, static_cast<std::uint32_t>(rows_.size()));
}

void Forward::for_rows(std::uint32_t rows, std::uint64_t cost, FunctionRef<void(std::size_t)> fn) {
  pool_.run(rows, rows * cost, [&](std::uint32_t r, std::uint32_t) { fn(r); });
}

void Forward::norm_rows(const std::vector<float>& weight) {
  for_rows(static_cast<std::uint32_t>(rows_.size()), 2 * std::uint64_t{spec_.hidden}, [&](std::size_t r) {
    k_.rms_norm(x_.data() + r * spec_.hidden, weight.data(), spec_.norm_eps, spec_.hidden,
                normed_.data() + r * spec_.hidden);
  });
}

kernels::Int8Rows Forward::bytes_for(const kernels::WeightView& w, const float* x, std::uint32_t rows,
                                     Int8Buffer& buffer) {
  if (!fast_ || !kernels::takes_int8(w.format)) return {};
  const kernels::Int8Rows bytes = buffer.rows(0, rows, w.cols);
  for_rows(rows, 4 * std::uint64_t{w.cols}, [&](std::size_t r) {
    k_.quantise(w.format, x + r * w.cols, w.cols, 1, w.cols, bytes.from(static_cast<std::uint32_t>(r)));
  });
  return bytes;
}

void Forward::product(const kernels::WeightView& w, const float* x, const kernels::Int8Rows& bytes,
                      std::uint32_t rows, float* y, std::uint32_t begin, std::uint32_t end) const {
  if (bytes.codes != nullptr)
    k_.linear_int8(w, bytes, rows, y, w.rows, begin, end);
  else
    k_.linear(w, x, w.cols, rows, y, w.rows, begin, end);
}

std::uint32_t Forward::tiles_of_item(std::uint32_t tiles, std::uint32_t matrices, std::uint64_t cost) const {
  // Enough items that no thread waits long for the last one, and none so small that claiming it shows.
  // Kernels take four tiles at a time.
  const std::uint64_t share = std::uint64_t{tiles} * matrices / (4 * pool_.threads());
  const std::uint64_t worth = std::min(share, kItemCost / cost);
  return std::clamp(static_cast<std::uint32_t>((worth + 3) / 4 * 4), 4u, std::max(tiles, 4u));
}

bool Forward::same_input(const kernels::WeightView& a, const kernels::WeightView& b) const {
  if (a.order != nullptr || b.order != nullptr) return false;
  return !fast_ || !kernels::takes_int8(a.format) || !kernels::takes_int8(b.format) || a.format == b.format;
}

void Forward::products(const float* x, std::initializer_list<Product> all, std::uint32_t rows) {
  const kernels::WeightView& first = all.begin()->linear.weight;
  const kernels::WeightView* coded = nullptr;
  for (const Product& p : all) {
    const kernels::WeightView& w = p.linear.weight;
    if (coded == nullptr && kernels::takes_int8(w.format)) coded = &w;
    if (all.size() == 1 || (same_input(first, w) && (coded == nullptr || same_input(*coded, w)))) continue;
    for (const Product& one : all) products(x, {one}, rows);
    return;
  }
  if (first.order != nullptr) {
    for (std::size_t r = 0; r < rows; ++r)
      kernels::in_order(first.order, first.cols, x + r * first.cols, ordered_.data() + r * first.cols);
    x = ordered_.data();
  }
  const kernels::Int8Rows bytes = bytes_for(coded != nullptr ? *coded : first, x, rows, bytes_);
  struct Part {
    std::uint32_t tiles, step, items;
  };
  std::array<Part, kMostProducts> parts;
  std::uint32_t items = 0;
  std::uint64_t cost = 0;
  const std::uint64_t tile_cost = std::uint64_t{kernels::kTileRows} * first.cols * rows;
  WISP_CHECK(all.size() <= parts.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint32_t tiles = kernels::tiles_of(all.begin()[i].linear.weight.rows);
    const std::uint32_t step = tiles_of_item(tiles, 1, tile_cost);
    parts[i] = {tiles, step, (tiles + step - 1) / step};
    items += parts[i].items;
    cost += tiles * tile_cost;
  }
  pool_.run(items, cost, [&](std::uint32_t item, std::uint32_t) {
    std::size_t i = 0;
    while (item >= parts[i].items) item -= parts[i++].items;
    const Product& p = all.begin()[i];
    const kernels::WeightView& w = p.linear.weight;
    const std::uint32_t begin = item * parts[i].step, end = std::min(parts[i].tiles, begin + parts[i].step);
    product(w, x, kernels::takes_int8(w.format) ? bytes : kernels::Int8Rows{}, rows, p.y, begin, end);
    const std::size_t column = std::size_t{begin} * kernels::kTileRows;
    const std::size_t n = std::min<std::size_t>(std::size_t{end} * kernels::kTileRows, w.rows) - column;
    for (std::size_t r = 0; r < rows; ++r) {
      float* y = p.y + r * w.rows + column;
      if (!p.linear.bias.empty()) k_.add(y, p.linear.bias.data() + column, n);
      if (p.sum != nullptr) k_.add(p.sum + r * w.rows + column, y, n);
    }
  });
}

void Forward::mlp(std::uint32_t layer, float* y, float* sum) {
  const LayerWeights& w = weights_.layers[layer];
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  const kernels::WeightView &gate = w.gate.weight, &up = w.up.weight;
  const std::uint32_t width = gate.rows;
  if (same_input(gate, up) && gate.format == up.format) {
    const Input in{normed_.data(), bytes_for(gate, normed_.data(), rows, bytes_)};
    const std::uint32_t tiles = kernels::tiles_of(width);
    const std::uint64_t tile_cost = 2 * std::uint64_t{kernels::kTileRows} * gate.cols * rows;
    const std::uint32_t step = tiles_of_item(tiles, 1, tile_cost);
    pool_.run((tiles + step - 1) / step, tiles * tile_cost, [&](std::uint32_t item, std::uint32_t) {
      const std::uint32_t begin = item * step, end = std::min(tiles, begin + step);
      gated({gate, up, {}, nullptr, nullptr, nullptr}, in, in, rows, gate_.data(), up_.data(), begin, end);
    });
  } else {
    products(normed_.data(), {{w.gate, gate_.data()}, {w.up, up_.data()}}, rows);
    glu(gate_.data(), up_.data(), std::size_t{rows} * width);
  }
  products(gate_.data(), {{w.down, y, sum}}, rows);
}

void Forward::glu(float* gate, const float* up, std::size_t n) const {
  if (spec_.glu.limit == 0.0f) return k_.silu_mul(gate, up, n);
  kernels::clamped_glu(gate, up, n, spec_.glu.limit, spec_.glu.alpha);
}

void Forward::keep_hidden(std::span<const Sequence> sequences) {
  norm_rows(weights_.norm);
  const std::uint32_t h = spec_.hidden;
  for_rows(static_cast<std::uint32_t>(rows_.size()), h, [&](std::size_t r) {
    const Sequence& s = sequences[rows_[r].sequence];
    const std::uint32_t at = rows_[r].position;
    const float* const row = normed_.data() + r * h;
    // The speculator may still be reading what a request that has ended left here.
    auto* const out = reinterpret_cast<std::uint16_t*>(
        kv_.hidden(s.pages[at / kernels::kPageTokens], at % kernels::kPageTokens, h));
    for (std::uint32_t i = 0; i < h; ++i) shm::store_word(out + i, kernels::float_to_bf16(row[i]));
  });
}

void Forward::head(std::span<Sequence> sequences) {
  logits_of_.assign(sequences.size(), {});
  std::uint32_t wanted = 0;
  std::size_t end = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::size_t begin = end;
    end += sequences[s].ids.size();
    if (sequences[s].logits == Logits::kNone) continue;
    const std::size_t first = sequences[s].logits == Logits::kAllRows ? begin : end - 1 - sequences[s].drafts;
    logits_of_[s] = {wanted, static_cast<std::uint32_t>(end - first)};
    for (std::size_t row = first; row < end; ++row, ++wanted) {
      float* const to = normed_.data() + std::size_t{wanted} * spec_.hidden;
      if (kv_.hidden_at == 0)
        k_.rms_norm(x_.data() + row * spec_.hidden, weights_.norm.data(), spec_.norm_eps, spec_.hidden, to);
      else if (row != wanted)  // all rows are there
        std::copy_n(normed_.data() + row * spec_.hidden, spec_.hidden, to);
    }
  }
  if (const std::size_t n = std::size_t{wanted} * spec_.vocab; n > logits_.size()) logits_.resize(n);
  if (wanted == 0) return;
  products(normed_.data(), {{weights_.head, logits_.data()}}, wanted);
}

void Forward::reserve_logits(std::uint32_t rows) {
  logits_.resize(std::size_t{rows} * spec_.vocab);
}

std::span<const float> Forward::logits(std::size_t i) const {
  const LogitRows rows = logits_of_[i];
  WISP_CHECK(rows.count != 0);
  return std::span(logits_).subspan(std::size_t{rows.first} * spec_.vocab,
                                    std::size_t{rows.count} * spec_.vocab);
}

std::span<const float> Forward::normed(std::size_t i) const {
  const LogitRows rows = logits_of_[i];
  WISP_CHECK(rows.count != 0);
  return std::span(normed_).subspan(std::size_t{rows.first} * spec_.hidden,
                                    std::size_t{rows.count} * spec_.hidden);
}

}  // namespace wisp::compute
