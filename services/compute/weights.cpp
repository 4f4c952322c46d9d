#include "services/compute/weights.hpp"

#include <algorithm>
#include <cstring>

#include "wisp/kernels/number.hpp"

namespace wisp::compute {

namespace {

using kernels::WeightFormat;
using kernels::WeightView;

/// A matrix whose planes begin at `at`; `scales` and `order` are bytes from there, 0 where there are none.
WeightView view(WeightFormat format, std::uint32_t rows, std::uint32_t cols, std::uint32_t group,
                const std::byte* at, std::uint64_t scales, std::uint64_t order) {
  WeightView w;
  w.format = format;
  w.rows = rows;
  w.cols = cols;
  w.group = group;
  w.codes = reinterpret_cast<const std::uint8_t*>(at);
  if (scales != 0) w.scales = reinterpret_cast<const std::uint8_t*>(at + scales);
  if (order != 0) w.order = reinterpret_cast<const std::uint32_t*>(at + order);
  return w;
}

/// Looks tensors up by canonical name and holds each against the shape the spec demands.
class Binder {
 public:
  Binder(const model::Manifest& m, const std::byte* dense, std::uint64_t bytes)
      : m_(m), dense_(dense), bytes_(bytes) {}

  bool has(const std::string& name) const { return m_.dense.contains(name); }

  WeightView matrix(const std::string& name, std::uint32_t rows, std::uint32_t cols) {
    const model::DenseTensor* t = find(name, rows, cols, true);
    if (t == nullptr) return {};
    const model::Planes planes = model::planes_of(*t);
    const std::byte* const at = dense_ + t->offset;
    return view(t->format, rows, cols, t->group, at, planes.scales, planes.order);
  }

  std::vector<float> vector(const std::string& name, std::uint32_t n) {
    const model::DenseTensor* t = find(name, 1, n, false);
    std::vector<float> out(n, 0.0f);
    if (t == nullptr) return out;
    const std::byte* p = dense_ + t->offset;
    const std::size_t size = kernels::row_bytes(t->format, 1);
    for (std::uint32_t i = 0; i < n; ++i) out[i] = kernels::plain_to_float(t->format, p + i * size);
    return out;
  }

  Linear linear(const std::string& name, std::uint32_t rows, std::uint32_t cols, bool bias) {
    Linear l;
    l.weight = matrix(name, rows, cols);
    if (bias && has(name + ".bias")) l.bias = vector(name + ".bias", rows);
    return l;
  }

  /// Errors: kInvalid with the first problem.
  Status check() const {
    if (problem_.empty()) return {};
    return invalid("model " + m_.name + ": " + problem_ + "; convert the checkpoint again");
  }

 private:
  const model::DenseTensor* find(const std::string& name, std::uint32_t rows, std::uint32_t cols,
                                 bool tiled) {
    const auto it = m_.dense.find(name);
    if (it == m_.dense.end()) {
      note("tensor " + name + " is missing");
      return nullptr;
    }
    const model::DenseTensor& t = it->second;
    if (t.rows != rows || t.cols != cols || t.tiled != tiled) {
      note("tensor " + name + " has shape [" + std::to_string(t.rows) + ", " + std::to_string(t.cols) +
           "] where [" + std::to_string(rows) + ", " + std::to_string(cols) + "] is needed");
      return nullptr;
    }
    if (const std::uint64_t need = model::planes_of(t).bytes; t.offset > bytes_ || need > bytes_ - t.offset) {
      note("tensor " + name + " reaches past the end of the dense part");
      return nullptr;
    }
    return &t;
  }

  void note(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
  }

  const model::Manifest& m_;
  const std::byte* dense_;
  std::uint64_t bytes_;
  std::string problem_;
};

}  // namespace

Status Weights::bind_tables(const model::Manifest& m, const std::byte* dense, std::uint64_t dense_bytes) {
  const model::ModelSpec& s = m.spec;
  Binder b(m, dense, dense_bytes);
  embed = b.matrix("embed", s.vocab, s.hidden);
  head.weight = b.has("head") ? b.matrix("head", s.vocab, s.hidden) : embed;
  return b.check();
}

Result<Weights> Weights::bind(const model::Manifest& m, const std::byte* dense, std::uint64_t dense_bytes) {
  const model::ModelSpec& s = m.spec;
  const model::AttentionSpec& a = s.attention;
  Binder b(m, dense, dense_bytes);
  Weights w;
  if (s.draft_head) {
    w.join = b.linear("join", s.hidden, 2 * s.hidden, false);
    w.join_embed_norm = b.vector("join.embed_norm", s.hidden);
    w.join_hidden_norm = b.vector("join.hidden_norm", s.hidden);
  } else {
    WISP_TRY(w.bind_tables(m, dense, dense_bytes));
  }
  w.norm = b.vector("norm", s.hidden);
  w.layers.resize(s.layers.size());
  for (std::uint32_t l = 0; l < s.layers.size(); ++l) {
    LayerWeights& lw = w.layers[l];
    const auto name = [&](const std::string& rest) { return model::layer_tensor(l, rest); };
    lw.attn_norm = b.vector(name("attn_norm"), s.hidden);
    lw.ffn_norm = b.vector(name("ffn_norm"), s.hidden);
    const std::uint32_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
    if (a.is_latent()) {
      const model::LatentSpec& lat = a.latent;
      if (lat.q_rank != 0) {
        lw.q_a = b.linear(name("attn.q_a"), lat.q_rank, s.hidden, a.qkv_bias);
        lw.q_a_norm = b.vector(name("attn.q_a_norm"), lat.q_rank);
      }
      lw.q = b.linear(name("attn.q"), q, lat.q_rank != 0 ? lat.q_rank : s.hidden, false);
      lw.kv_a = b.linear(name("attn.kv_a"), lat.kv_rank + a.rope.width, s.hidden, a.qkv_bias);
      lw.kv_a_norm = b.vector(name("attn.kv_a_norm"), lat.kv_rank);
      lw.k_up = b.matrix(name("attn.k_up"), a.heads * a.key_up_rows(), lat.nope);
      lw.v_up = b.matrix(name("attn.v_up"), a.heads * a.value_up_rows(), lat.kv_rank);
      if (const model::IndexerSpec& x = a.indexer; x.heads != 0 && s.layers[l].indexes) {
        lw.index_q = b.linear(name("indexer.q"), x.heads * x.head_dim, lat.q_rank, false);
        lw.index_k = b.linear(name("indexer.k"), x.head_dim, s.hidden, false);
        lw.index_k_norm = b.vector(name("indexer.k_norm"), x.head_dim);
        lw.index_k_norm_bias = b.vector(name("indexer.k_norm.bias"), x.head_dim);
        lw.index_weights = b.linear(name("indexer.weights"), x.heads, s.hidden, false);
      }
    } else {
      lw.q = b.linear(name("attn.q"), q, s.hidden, a.qkv_bias);
      lw.k = b.linear(name("attn.k"), kv, s.hidden, a.qkv_bias);
      lw.v = b.linear(name("attn.v"), kv, s.hidden, a.qkv_bias);
    }
    lw.o = b.linear(name("attn.o"), s.hidden, a.output_width(), a.output_bias);
    if (a.qk_norm != model::QkNorm::kNone) {
      const bool whole = a.qk_norm == model::QkNorm::kWhole;
      lw.q_norm = b.vector(name("attn.q_norm"), whole ? q : a.head_dim);
      lw.k_norm = b.vector(name("attn.k_norm"), whole ? kv : a.head_dim);
    }
    if (a.sinks) lw.sinks = b.vector(name("attn.sinks"), a.heads);
    const bool moe = s.layers[l].moe;
    if (moe) {
      lw.router = b.linear(name("router"), s.router.experts, s.hidden,
                           s.router.kind == model::RouterKind::kTopKSoftmax);
      if (s.router.kind == model::RouterKind::kSigmoidTopK)
        lw.selection = b.vector(name("router.selection"), s.router.experts);
      if (s.shared.gated) lw.mix = b.linear(name("shared.mix"), 1, s.hidden, false);
    }
    const std::uint32_t width = moe ? s.shared.width : s.layers[l].dense_width;
    if (width != 0) {
      const std::string mlp = moe ? "shared." : "ffn.";
      lw.gate = b.linear(name(mlp + "gate"), width, s.hidden, false);
      lw.up = b.linear(name(mlp + "up"), width, s.hidden, false);
      lw.down = b.linear(name(mlp + "down"), s.hidden, width, false);
    }
  }
  WISP_TRY(b.check());
  return w;
}

ExpertWeights ExpertWeights::at(const model::ExpertShape& shape, const std::byte* extent) {
  const auto matrix = [&](const model::ExpertMatrix& m) {
    const std::uint64_t scales = m.group == 0 ? 0 : m.scales_offset - m.codes_offset;
    const std::uint64_t order = m.order_offset == 0 ? 0 : m.order_offset - m.codes_offset;
    return view(m.format, m.rows, m.cols, m.group, extent + m.codes_offset, scales, order);
  };
  const auto bias = [&](const model::ExpertMatrix& m) {
    return m.bias_offset == 0 ? nullptr : reinterpret_cast<const float*>(extent + m.bias_offset);
  };
  return {matrix(shape.gate), matrix(shape.up), matrix(shape.down),
          bias(shape.gate),   bias(shape.up),   bias(shape.down)};
}

}  // namespace wisp::compute
