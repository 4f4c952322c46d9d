#include "services/compute/forward.hpp"

#include <algorithm>

namespace wisp::compute {

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
  std::uint32_t width = spec.moe_width;
  for (const model::LayerSpec& l : spec.layers)
    width = std::max(width, l.moe ? spec.shared.width : l.dense_width);
  for (auto* v : {&x_, &normed_, &block_, &gathered_}) v->resize(n * spec.hidden);
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
  if (spec.shared.width != 0) shared_.resize(n * spec.hidden);
  mix_.resize(spec.shared.gated ? n : 0);
  product_of_.resize(chosen_.size());
  place_row_.resize(chosen_.size());
}

bool Forward::run(std::span<Sequence> sequences, ExpertSource& experts,
                  const std::function<bool()>& cancelled) {
  lay_out_rows(sequences);
  const auto rows = static_cast<std::uint32_t>(rows_.size());

  embed(sequences);
  for (std::uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    norm_rows(w.attn_norm);
    if (spec_.attention.is_latent())
      latent_attention(layer, sequences);
    else
      attention(layer, sequences);
    k_.add(x_.data(), block_.data(), std::size_t{rows} * spec_.hidden);
    norm_rows(w.ffn_norm);
    if (spec_.layers[layer].moe) {
      if (!moe_ffn(layer, sequences, experts, cancelled)) return false;
    } else {
      mlp(layer, block_.data());
    }
    k_.add(x_.data(), block_.data(), std::size_t{rows} * spec_.hidden);
  }
  head(sequences);
  return true;
}

void Forward::lay_out_rows(std::span<const Sequence> sequences) {
  rows_.clear();
  stretches_.clear();
  decode_ = true;
  const auto add = [&](std::uint32_t s, std::uint32_t begin, std::uint32_t end, bool naive) {
    if (begin >= end) return;
    const auto first = static_cast<std::uint32_t>(rows_.size());
    for (std::uint32_t p = begin; p < end; ++p) rows_.push_back({s, p});
    if (naive || stretches_.empty() || stretches_.back().naive) stretches_.push_back({first, first, naive});
    stretches_.back().end = static_cast<std::uint32_t>(rows_.size());
  };
  for (std::uint32_t s = 0; s < sequences.size(); ++s) {
    const Sequence& q = sequences[s];
    const std::uint32_t end = q.start + static_cast<std::uint32_t>(q.ids.size());
    const std::uint32_t cut = std::clamp(q.naive_until, q.start, end);
    decode_ = decode_ && q.ids.size() == 1;
    add(s, q.start, cut, true);
    add(s, cut, end, false);
  }
  WISP_CHECK(rows_.size() <= max_rows_);
}

void Forward::embed(std::span<const Sequence> sequences) {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Sequence& s = sequences[rows_[r].sequence];
    kernels::gather_row(weights_.embed, s.ids[rows_[r].position - s.start], x_.data() + r * spec_.hidden);
  }
}

void Forward::norm_rows(const std::vector<float>& weight) {
  for (std::size_t r = 0; r < rows_.size(); ++r)
    k_.rms_norm(x_.data() + r * spec_.hidden, weight.data(), spec_.norm_eps, spec_.hidden,
                normed_.data() + r * spec_.hidden);
}

kernels::Int8Rows Forward::bytes_for(const kernels::WeightView& w, const float* x, std::uint32_t rows,
                                     Int8Buffer& buffer) {
  if (!fast_ || !kernels::takes_int8(w.format)) return {};
  const kernels::Int8Rows bytes = buffer.rows(w.cols);
  k_.quantise(w.format, x, w.cols, rows, w.cols, bytes);
  return bytes;
}

void Forward::product(const kernels::WeightView& w, const float* x, const kernels::Int8Rows& bytes,
                      std::uint32_t rows, float* y, std::uint32_t begin, std::uint32_t end) const {
  if (bytes.codes != nullptr)
    k_.linear_int8(w, bytes, rows, y, w.rows, begin, end);
  else
    k_.linear(w, x, w.cols, rows, y, w.rows, begin, end);
}

void Forward::linear(const Linear& l, const float* x, float* y, std::uint32_t rows) {
  const kernels::WeightView& w = l.weight;
  if (w.order != nullptr) {
    for (std::size_t r = 0; r < rows; ++r)
      kernels::in_order(w.order, w.cols, x + r * w.cols, ordered_.data() + r * w.cols);
    x = ordered_.data();
  }
  const kernels::Int8Rows bytes = bytes_for(w, x, rows, bytes_);
  const std::uint32_t tiles = kernels::tiles_of(w.rows);
  // A few tiles an item: enough items to share, few enough to be cheap.
  const std::uint32_t step = std::max(1u, tiles / (4 * pool_.threads()));
  pool_.run((tiles + step - 1) / step, std::uint64_t{w.rows} * w.cols * rows,
            [&](std::uint32_t i, std::uint32_t) {
              product(w, x, bytes, rows, y, i * step, std::min(tiles, (i + 1) * step));
            });
  if (l.bias.empty()) return;
  for (std::size_t r = 0; r < rows; ++r) k_.add(y + r * w.rows, l.bias.data(), w.rows);
}

void Forward::mlp(std::uint32_t layer, float* y) {
  const LayerWeights& w = weights_.layers[layer];
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  linear(w.gate, normed_.data(), gate_.data(), rows);
  linear(w.up, normed_.data(), up_.data(), rows);
  glu(std::size_t{rows} * w.gate.weight.rows);
  linear(w.down, gate_.data(), y, rows);
}

void Forward::glu(std::size_t n) {
  if (spec_.glu.limit == 0.0f) return k_.silu_mul(gate_.data(), up_.data(), n);
  kernels::clamped_glu(gate_.data(), up_.data(), n, spec_.glu.limit, spec_.glu.alpha);
}

void Forward::head(std::span<Sequence> sequences) {
  logits_of_.assign(sequences.size(), {});
  std::uint32_t wanted = 0;
  std::size_t end = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::size_t begin = end;
    end += sequences[s].ids.size();
    if (sequences[s].logits == Logits::kNone) continue;
    const std::size_t first = sequences[s].logits == Logits::kAllRows ? begin : end - 1;
    logits_of_[s] = {wanted, static_cast<std::uint32_t>(end - first)};
    for (std::size_t row = first; row < end; ++row, ++wanted)
      k_.rms_norm(x_.data() + row * spec_.hidden, weights_.norm.data(), spec_.norm_eps, spec_.hidden,
                  normed_.data() + std::size_t{wanted} * spec_.hidden);
  }
  logits_.resize(std::size_t{wanted} * spec_.vocab);
  if (wanted == 0) return;
  linear({weights_.head, {}}, normed_.data(), logits_.data(), wanted);
}

std::span<const float> Forward::logits(std::size_t i) const {
  const LogitRows rows = logits_of_[i];
  WISP_CHECK(rows.count != 0);
  return std::span(logits_).subspan(std::size_t{rows.first} * spec_.vocab,
                                    std::size_t{rows.count} * spec_.vocab);
}

}  // namespace wisp::compute
