#include "model/dense_plan.hpp"

#include "model/manifest.hpp"

namespace wisp::model {

std::string layer_tensor(std::uint32_t layer, std::string_view rest) {
  return "layers." + std::to_string(layer) + "." + std::string(rest);
}

std::vector<DenseShape> dense_shapes(const ModelSpec& m) {
  std::vector<DenseShape> out;
  const auto& a = m.attention;
  const std::uint32_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const auto matrix = [&out](std::string name, std::uint32_t rows, std::uint32_t cols) {
    out.push_back({std::move(name), rows, cols, true, Derivation::kNone});
  };
  const auto chooser = [&](std::string name, std::uint32_t rows, std::uint32_t cols) {
    matrix(std::move(name), rows, cols);
    out.back().chooses = true;
  };
  const auto vector = [&out](std::string name, std::uint32_t cols) {
    out.push_back({std::move(name), 1, cols, false, Derivation::kNone});
  };

  if (m.draft_head) {
    vector("join.embed_norm", m.hidden);
    vector("join.hidden_norm", m.hidden);
    matrix("join", m.hidden, 2 * m.hidden);
  } else {
    matrix("embed", m.vocab, m.hidden);
  }
  for (std::uint32_t i = 0; i < m.layers.size(); ++i) {
    const auto in_layer = [i](std::string_view rest) { return layer_tensor(i, rest); };
    vector(in_layer("attn_norm"), m.hidden);
    if (a.is_latent()) {
      const LatentSpec& l = a.latent;
      const std::uint32_t q_from = l.q_rank != 0 ? l.q_rank : m.hidden;
      if (l.q_rank != 0) {
        matrix(in_layer("attn.q_a"), l.q_rank, m.hidden);
        if (a.qkv_bias) vector(in_layer("attn.q_a.bias"), l.q_rank);
        vector(in_layer("attn.q_a_norm"), l.q_rank);
      }
      matrix(in_layer("attn.q"), q, q_from);
      matrix(in_layer("attn.kv_a"), l.kv_rank + a.rope.width, m.hidden);
      if (a.qkv_bias) vector(in_layer("attn.kv_a.bias"), l.kv_rank + a.rope.width);
      vector(in_layer("attn.kv_a_norm"), l.kv_rank);
      out.push_back({in_layer("attn.k_up"), a.heads * a.key_up_rows(), l.nope, true, Derivation::kKeyUp});
      out.push_back(
          {in_layer("attn.v_up"), a.heads * a.value_up_rows(), l.kv_rank, true, Derivation::kValueUp});
      if (a.indexer.heads != 0 && m.layers[i].indexes) {
        matrix(in_layer("indexer.q"), a.indexer.heads * a.indexer.head_dim, l.q_rank);
        matrix(in_layer("indexer.k"), a.indexer.head_dim, m.hidden);
        vector(in_layer("indexer.k_norm"), a.indexer.head_dim);
        vector(in_layer("indexer.k_norm.bias"), a.indexer.head_dim);
        chooser(in_layer("indexer.weights"), a.indexer.heads, m.hidden);
      }
    } else {
      matrix(in_layer("attn.q"), q, m.hidden);
      matrix(in_layer("attn.k"), kv, m.hidden);
      matrix(in_layer("attn.v"), kv, m.hidden);
      if (a.qkv_bias) {
        vector(in_layer("attn.q.bias"), q);
        vector(in_layer("attn.k.bias"), kv);
        vector(in_layer("attn.v.bias"), kv);
      }
    }
    if (a.sinks) vector(in_layer("attn.sinks"), a.heads);
    if (a.qk_norm != QkNorm::kNone) {
      const bool whole = a.qk_norm == QkNorm::kWhole;
      vector(in_layer("attn.q_norm"), whole ? q : a.head_dim);
      vector(in_layer("attn.k_norm"), whole ? kv : a.head_dim);
    }
    matrix(in_layer("attn.o"), m.hidden, a.output_width());
    if (a.output_bias) vector(in_layer("attn.o.bias"), m.hidden);
    vector(in_layer("ffn_norm"), m.hidden);
    if (m.layers[i].moe) {
      chooser(in_layer("router"), m.router.experts, m.hidden);
      if (m.router.kind == RouterKind::kTopKSoftmax) vector(in_layer("router.bias"), m.router.experts);
      if (m.router.kind == RouterKind::kSigmoidTopK) vector(in_layer("router.selection"), m.router.experts);
      if (m.shared.width != 0) {
        matrix(in_layer("shared.gate"), m.shared.width, m.hidden);
        matrix(in_layer("shared.up"), m.shared.width, m.hidden);
        matrix(in_layer("shared.down"), m.hidden, m.shared.width);
        if (m.shared.gated) chooser(in_layer("shared.mix"), 1, m.hidden);
      }
    } else {
      matrix(in_layer("ffn.gate"), m.layers[i].dense_width, m.hidden);
      matrix(in_layer("ffn.up"), m.layers[i].dense_width, m.hidden);
      matrix(in_layer("ffn.down"), m.hidden, m.layers[i].dense_width);
    }
  }
  vector("norm", m.hidden);
  if (!m.tied_head && !m.draft_head) matrix("head", m.vocab, m.hidden);
  return out;
}

}  // namespace wisp::model
