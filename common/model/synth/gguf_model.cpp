#include "model/synth/gguf_model.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/check.hpp"
#include "model/synth/gguf_file.hpp"
#include "wisp/kernels/number.hpp"

/// Names of keys and tensors: llama.cpp, gguf-py/gguf/constants.py.
namespace wisp::model {
namespace {

using kernels::WeightFormat;
using Part = RandomWeights::Part;

struct Architecture {
  const char* family;
  const char* name;  ///< in GGUF
  /// Its rotation is of neighbours where the checkpoint's is of halves: rows of q and k are brought into
  /// another order.
  bool neighbours;
};
constexpr std::array<Architecture, 3> kArchitectures{{
    {"qwen3_moe", "qwen3moe", false},
    {"mixtral", "llama", true},
    {"deepseek_v3", "deepseek2", false},
}};

const Architecture* architecture_of(const ModelSpec& spec) {
  for (const Architecture& a : kArchitectures)
    if (spec.family == a.family) return &a;
  return nullptr;
}

struct Name {
  std::string_view ours, theirs;
};
constexpr std::array<Name, 25> kNames{{
    {"embed", "token_embd.weight"},
    {"norm", "output_norm.weight"},
    {"head", "output.weight"},
    {"attn_norm", "attn_norm.weight"},
    {"ffn_norm", "ffn_norm.weight"},
    {"attn.q", "attn_q.weight"},
    {"attn.k", "attn_k.weight"},
    {"attn.v", "attn_v.weight"},
    {"attn.o", "attn_output.weight"},
    {"attn.q_norm", "attn_q_norm.weight"},
    {"attn.k_norm", "attn_k_norm.weight"},
    {"attn.q_a", "attn_q_a.weight"},
    {"attn.q_a_norm", "attn_q_a_norm.weight"},
    {"attn.kv_a", "attn_kv_a_mqa.weight"},
    {"attn.kv_a_norm", "attn_kv_a_norm.weight"},
    {"attn.k_up", "attn_k_b.weight"},
    {"attn.v_up", "attn_v_b.weight"},
    {"router", "ffn_gate_inp.weight"},
    {"router.selection", "exp_probs_b.bias"},
    {"shared.gate", "ffn_gate_shexp.weight"},
    {"shared.up", "ffn_up_shexp.weight"},
    {"shared.down", "ffn_down_shexp.weight"},
    {"ffn.gate", "ffn_gate.weight"},
    {"ffn.up", "ffn_up.weight"},
    {"ffn.down", "ffn_down.weight"},
}};

/// "layers.3.attn.q" without its layer: "attn.q"; `prefix` becomes "blk.3.".
std::string_view without_layer(std::string_view name, std::string& prefix) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return name;
  name.remove_prefix(kLayers.size());
  const std::size_t dot = name.find('.');
  prefix = "blk." + std::string(name.substr(0, dot)) + ".";
  return name.substr(dot + 1);
}

std::string their_name(const std::string& ours, const ModelSpec& spec) {
  std::string prefix;
  const std::string_view rest = without_layer(ours, prefix);
  if (rest == "attn.q" && spec.attention.latent.q_rank != 0) return prefix + "attn_q_b.weight";
  for (const Name& n : kNames)
    if (n.ours == rest) return prefix + std::string(n.theirs);
  WISP_CHECK(false);  // check_gguf has let a family in whose tensors are not all named
  return prefix;
}

bool is_exact_in_f32(std::string_view rest) {
  return rest == "router";
}

/// The type that holds a matrix's numbers.
GgufType type_of(const DenseItem& item) {
  std::string prefix;
  if (!item.matrix || is_exact_in_f32(without_layer(item.name, prefix))) return GgufType::kF32;
  switch (item.format) {
    case WeightFormat::kInt4:
      return GgufType::kQ4_0;
    case WeightFormat::kInt8:
      return GgufType::kQ8_0;
    case WeightFormat::kBf16:
      return GgufType::kBf16;
    default:
      return GgufType::kF32;
  }
}

bool has_type(WeightFormat f, std::uint32_t cols) {
  if (f == WeightFormat::kInt4 || f == WeightFormat::kInt8) return cols % 32 == 0;
  return !kernels::is_coded(f);
}

std::uint16_t f16_of_bf16(std::uint16_t scale) {
  const std::uint32_t exponent = scale >> 7 & 0xffu;
  WISP_CHECK((scale & 0x8000u) == 0 && exponent >= 110 && exponent < 142);  // positive, exact in f16
  const std::uint32_t fraction = scale & 0x7fu;
  if (exponent >= 113) return static_cast<std::uint16_t>((exponent - 112) << 10 | fraction << 3);
  return static_cast<std::uint16_t>((0x80u | fraction) << 3 >> (113 - exponent));
}

/// Rows of a RandomMatrix as GGUF has them.
class Rows {
 public:
  Rows(const RandomMatrix& m, GgufType type) : m_(m), type_(type) {
    plain_.resize(kernels::row_bytes(m.format, m.cols));
    scales_.resize(kernels::groups_of(m.cols, m.group));
  }

  void put(std::uint32_t row, std::span<std::uint8_t> out) {
    m_.codes(row, plain_);
    switch (type_) {
      case GgufType::kF32:
        if (m_.format == WeightFormat::kF32) break;
        for (std::uint32_t k = 0; k < m_.cols; ++k) {
          const float v = kernels::plain_to_float(m_.format, plain_.data() + std::size_t{k} * 2);
          std::memcpy(out.data() + std::size_t{k} * 4, &v, 4);
        }
        return;
      case GgufType::kBf16:
        break;
      case GgufType::kQ4_0:
      case GgufType::kQ8_0:
        return put_blocks(row, out);
    }
    std::memcpy(out.data(), plain_.data(), out.size());
  }

 private:
  /// Blocks of 32 columns: the scale, then the codes. Q4_0: column j in the low half of byte j, column j + 16
  /// in the high one.
  void put_blocks(std::uint32_t row, std::span<std::uint8_t> out) {
    m_.scales(row, {reinterpret_cast<std::uint8_t*>(scales_.data()), scales_.size() * 2});
    std::uint8_t* to = out.data();
    for (std::uint32_t k = 0; k < m_.cols; k += 32) {
      const std::uint16_t d = f16_of_bf16(scales_[k / m_.group]);
      std::memcpy(to, &d, 2);
      to += 2;
      if (type_ == GgufType::kQ8_0) {
        std::memcpy(to, plain_.data() + k, 32);
        to += 32;
        continue;
      }
      const auto nibble = [&](std::uint32_t col) { return plain_[col / 2] >> (4 * (col % 2)) & 15; };
      for (std::uint32_t j = 0; j < 16; ++j)
        *to++ = static_cast<std::uint8_t>(nibble(k + j) | nibble(k + j + 16) << 4);
    }
  }

  const RandomMatrix& m_;
  GgufType type_;
  std::vector<std::uint8_t> plain_;
  std::vector<std::uint16_t> scales_;
};

/// The row of ours that stands at row `row` of theirs.
std::uint32_t source_row(const DenseItem& item, const ModelSpec& spec, std::uint32_t row) {
  const AttentionSpec& a = spec.attention;
  std::string prefix;
  const std::string_view rest = without_layer(item.name, prefix);
  const auto unpadded = [&](std::uint32_t live, std::uint32_t padded) {
    return row / live * padded + row % live;
  };
  if (rest == "attn.k_up") return unpadded(a.latent.kv_rank, a.key_up_rows());
  if (rest == "attn.v_up") return unpadded(a.latent.value, a.value_up_rows());
  if (!architecture_of(spec)->neighbours || (rest != "attn.q" && rest != "attn.k")) return row;
  const std::uint32_t in_head = row % a.head_dim;
  return row - in_head + in_head / 2 + in_head % 2 * (a.head_dim / 2);
}

GgufTensor dense_tensor(const DenseItem& item, const ModelSpec& spec) {
  GgufTensor t{their_name(item.name, spec), type_of(item), {item.cols}};
  const AttentionSpec& a = spec.attention;
  if (item.name.ends_with("attn.k_up"))
    t.shape = {item.cols, a.latent.kv_rank, a.heads};
  else if (item.name.ends_with("attn.v_up"))
    t.shape = {item.cols, a.latent.value, a.heads};
  else if (item.matrix)
    t.shape = {item.cols, item.rows};
  return t;
}

struct ExpertTensor {
  Part part;
  const char* name;
};
constexpr std::array<ExpertTensor, 3> kExpertTensors{{{Part::kGate, "ffn_gate_exps.weight"},
                                                      {Part::kUp, "ffn_up_exps.weight"},
                                                      {Part::kDown, "ffn_down_exps.weight"}}};

DenseItem as_item(const RandomMatrix& m) {
  return {"", m.format, m.rows, m.cols, true, m.group, false};
}

using Values = std::vector<std::pair<std::string, GgufValue>>;

void add_latent_values(const ModelSpec& spec, const std::string& arch, Values& out) {
  const AttentionSpec& a = spec.attention;
  const LatentSpec& l = a.latent;
  const auto add = [&](const char* key, GgufValue v) { out.emplace_back(arch + key, std::move(v)); };
  // Keys and values as attention over the latent sees them, and as the heads have them.
  add(".attention.head_count_kv", std::uint32_t{1});
  add(".attention.key_length", l.kv_rank + a.rope.width);
  add(".attention.value_length", l.kv_rank);
  add(".attention.key_length_mla", a.head_dim);
  add(".attention.value_length_mla", l.value);
  add(".attention.q_lora_rank", l.q_rank);
  add(".attention.kv_lora_rank", l.kv_rank);
  std::uint32_t leading = 0;
  while (leading < spec.layers.size() && !spec.layers[leading].moe) ++leading;
  add(".leading_dense_block_count", leading);
  if (leading > 0) add(".feed_forward_length", spec.layers.front().dense_width);
  add(".expert_shared_count", spec.shared.width / spec.moe_width);
  add(".expert_weights_scale", spec.router.scale);
  add(".expert_weights_norm", spec.router.renormalise);
  add(".expert_gating_func", std::uint32_t{2});  // sigmoid
  add(".expert_group_count", spec.router.groups);
  add(".expert_group_used_count", spec.router.kept_groups);
  if (!a.rope.yarn) return;
  const YarnSpec& y = *a.rope.yarn;
  add(".rope.scaling.type", std::string("yarn"));
  add(".rope.scaling.factor", static_cast<float>(y.factor));
  add(".rope.scaling.original_context_length", static_cast<std::uint32_t>(y.original_length));
  add(".rope.scaling.yarn_log_multiplier", static_cast<float>(0.1 * y.mscale_all_dim));
  add(".rope.scaling.yarn_beta_fast", static_cast<float>(y.beta_fast));
  add(".rope.scaling.yarn_beta_slow", static_cast<float>(y.beta_slow));
}

Values values_of(const ModelSpec& spec, const std::string& name) {
  const std::string arch = architecture_of(spec)->name;
  const AttentionSpec& a = spec.attention;
  Values out{{"general.architecture", arch}, {"general.name", name}};
  const auto add = [&](const char* key, GgufValue v) { out.emplace_back(arch + key, std::move(v)); };
  add(".block_count", static_cast<std::uint32_t>(spec.layers.size()));
  add(".context_length", spec.max_positions);
  add(".embedding_length", spec.hidden);
  add(".vocab_size", spec.vocab);
  add(".attention.head_count", a.heads);
  add(".attention.layer_norm_rms_epsilon", spec.norm_eps);
  add(".rope.freq_base", static_cast<float>(a.rope.theta));
  add(".rope.dimension_count", a.rope.width);
  add(".expert_count", spec.router.experts);
  add(".expert_used_count", spec.router.top_k);
  add(".expert_feed_forward_length", spec.moe_width);
  if (a.is_latent()) {
    add_latent_values(spec, arch, out);
  } else {
    add(".attention.head_count_kv", a.kv_heads);
    add(".attention.key_length", a.head_dim);
    add(".attention.value_length", a.head_dim);
    add(".feed_forward_length", spec.moe_width);
  }
  out.emplace_back("tokenizer.ggml.model", std::string("no_vocab"));
  return out;
}

}  // namespace

Status check_gguf(const ModelSpec& spec, const std::vector<DenseItem>& items) {
  if (architecture_of(spec) == nullptr)
    return unsupported("--gguf is not available for " + spec.family +
                       "; it is for the shapes of qwen3, mixtral-8x7b and deepseek-v3");
  const auto check = [](const std::string& what, WeightFormat f, std::uint32_t cols) -> Status {
    if (has_type(f, cols)) return {};
    return unsupported("--gguf has no type with the same numbers for " + what + " in " +
                       std::string(kernels::name_of(f)) + " with " + std::to_string(cols) +
                       " columns; it takes bf16 and f32, and int4 and int8 of whole groups of 32");
  };
  for (const DenseItem& item : items) WISP_TRY(check(item.name, item.format, item.cols));
  if (spec.moe_layers() == 0) return {};
  WISP_TRY(check("experts", spec.expert.gate.format, spec.expert.gate.cols));
  return check("experts", spec.expert.down.format, spec.expert.down.cols);
}

Result<std::uint64_t> write_gguf(const std::string& path, bool replace, const std::string& name,
                                 const ModelSpec& spec, const std::vector<DenseItem>& items,
                                 const RandomWeights& weights, const ProgressFn& progress) {
  std::vector<GgufTensor> tensors;
  for (const DenseItem& item : items) tensors.push_back(dense_tensor(item, spec));
  for (std::uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (!spec.layers[layer].moe) continue;
    for (const ExpertTensor& t : kExpertTensors) {
      const RandomMatrix m = weights.expert(layer, 0, t.part);
      tensors.push_back({"blk." + std::to_string(layer) + "." + t.name,
                         type_of(as_item(m)),
                         {m.cols, m.rows, spec.router.experts}});
    }
  }
  WISP_ASSIGN(GgufFile file, GgufFile::create(path, replace, values_of(spec, name), tensors));

  std::uint64_t done = 0;
  std::vector<std::uint8_t> out;
  const auto put = [&](const RandomMatrix& m, GgufType type, std::uint32_t count,
                       const std::function<std::uint32_t(std::uint32_t)>& source) -> Status {
    const std::size_t row = gguf_row_bytes(type, m.cols);
    Rows rows(m, type);
    constexpr std::uint32_t kStep = 256;
    for (std::uint32_t first = 0; first < count; first += kStep) {
      const std::uint32_t n = std::min(kStep, count - first);
      out.resize(n * row);
      for (std::uint32_t r = 0; r < n; ++r) rows.put(source(first + r), std::span(out).subspan(r * row, row));
      WISP_TRY(file.write(out));
      done += out.size();
      if (progress) progress(done, file.bytes());
    }
    return {};
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto source = [&](std::uint32_t row) { return source_row(items[i], spec, row); };
    std::uint64_t rows = 1;
    for (std::size_t d = 1; d < tensors[i].shape.size(); ++d) rows *= tensors[i].shape[d];
    WISP_TRY(put(weights.dense(i), tensors[i].type, static_cast<std::uint32_t>(rows), source));
  }
  for (std::uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (!spec.layers[layer].moe) continue;
    for (const ExpertTensor& t : kExpertTensors)
      for (std::uint32_t e = 0; e < spec.router.experts; ++e) {
        const RandomMatrix m = weights.expert(layer, e, t.part);
        WISP_TRY(put(m, type_of(as_item(m)), m.rows, [](std::uint32_t row) { return row; }));
      }
  }
  WISP_TRY(file.close());
  return file.bytes();
}

}  // namespace wisp::model
