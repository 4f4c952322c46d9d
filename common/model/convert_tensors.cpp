#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "model/convert_plan.hpp"
#include "model/dense_plan.hpp"
#include "model/family.hpp"
#include "model/float_check.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

using Entry = Checkpoint::Entry;
using Kind = TensorName::Kind;
using kernels::WeightFormat;

constexpr std::array<std::string_view, 3> kPartNames{"gate", "up", "down"};

std::string where(const Checkpoint& c, const Entry& e) {
  return c.file_of(e) + ": tensor " + printable(e.info->name);
}

bool has_shape(const Entry& e, std::initializer_list<std::uint64_t> shape) {
  return std::equal(e.info->shape.begin(), e.info->shape.end(), shape.begin(), shape.end());
}

Error wrong_shape(const Checkpoint& c, const Entry& e, const std::string& need) {
  return invalid(where(c, e) + ": is " + describe(*e.info) + ", the config needs " + need);
}

std::string dims(std::initializer_list<std::uint64_t> shape) {
  std::string s = "[";
  for (const auto d : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(d);
  return s + "]";
}

/// Multimodal wrappers put the text model one level down.
std::string_view without_wrapper(std::string_view name, std::string& scratch) {
  for (const std::string_view wrapper : {"language_model.model.", "model.language_model."}) {
    if (name.starts_with(wrapper)) return scratch = "model." + std::string(name.substr(wrapper.size()));
  }
  if (name.starts_with("language_model.")) name.remove_prefix(15);
  return name;
}

/// Sorts tensors; what is found is held against the spec afterwards.
class Sorter {
 public:
  explicit Sorter(ConvertPlan& plan) : plan_(plan), spec_(plan.manifest.spec) {
    plan_.experts.resize(spec_.layers.size());
    fused_.resize(spec_.layers.size());
    fused_bias_.resize(spec_.layers.size());
    block_scales_.resize(spec_.layers.size());
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      if (spec_.layers[i].moe) plan_.experts[i].resize(spec_.router.experts);
    }
  }

  Status sort_all() {
    for (const auto& e : plan_.checkpoint.entries()) WISP_TRY(sort(e));
    if (skipped_ != 0)
      plan_.notes.push_back(std::to_string(skipped_) +
                            " tensors of the layer that predicts further tokens are left out");
    return {};
  }

  Status assign_dense() {
    spec_.tied_head = !dense_.contains("head");
    if (spec_.tied_head && plan_.config.tied == false) {
      plan_.notes.push_back(
          "lm_head.weight is not stored although tie_word_embeddings is false: the embedding is used");
    }
    std::set<std::string> used;
    for (const auto& want : dense_shapes(spec_)) {
      const bool derived = want.derivation != Derivation::kNone;
      const std::string stored = derived ? want.name.substr(0, want.name.rfind('.')) + ".kv_b" : want.name;
      const auto it = dense_.find(stored);
      if (it == dense_.end()) {
        const bool bias = stored.ends_with(".bias");
        return not_found(plan_.checkpoint.folder() + ": tensor " + source_of(*plan_.config.family, stored) +
                         " is missing" + (bias ? ", but the config says that there is such a bias" : ""));
      }
      used.insert(stored);
      WISP_TRY(check_dense(*it->second, want));
      plan_.items.push_back(
          {want.name, *plain_format(it->second->info->dtype), want.rows, want.cols, want.matrix});
      plan_.sources.push_back({it->second, want.derivation});
    }
    for (const auto& [name, e] : dense_) {
      if (used.contains(name)) continue;
      const char* why = name.ends_with(".bias")
                            ? ": is stored, but the config says that there is no such bias"
                            : ": is stored, but the config gives this layer no such tensor";
      return invalid(where(plan_.checkpoint, *e) + why);
    }
    return {};
  }

  Status assign_experts() {
    if (spec_.moe_layers() == 0) return {};
    std::array<std::optional<WeightFormat>, 3> formats;
    for (std::uint32_t layer = 0; layer < plan_.experts.size(); ++layer) {
      WISP_TRY(split_fused(layer));
      for (std::uint32_t e = 0; e < plan_.experts[layer].size(); ++e) {
        for (std::size_t p = 0; p < 3; ++p) WISP_TRY(check_part(layer, e, p, formats));
      }
    }
    if (plan_.experts_int4) WISP_TRY(round_to_int4(formats));
    const bool coded = kernels::is_coded(*formats[0]) || kernels::is_coded(*formats[2]);
    const std::uint32_t group =
        *formats[0] == WeightFormat::kMxfp4 || plan_.experts_int4 ? 32 : plan_.config.quant.group;
    spec_.expert = lay_out_expert(spec_.hidden, spec_.moe_width, *formats[0], *formats[2], coded ? group : 0,
                                  spec_.expert_bias);
    return {};
  }

 private:
  /// Plain experts are to become int4.
  Status round_to_int4(std::array<std::optional<WeightFormat>, 3>& formats) const {
    const std::string folder = plan_.checkpoint.folder();
    if (kernels::is_coded(*formats[0]) || kernels::is_coded(*formats[2]))
      return invalid(folder + ": its experts are " + std::string(kernels::name_of(*formats[0])) +
                     " already; --experts int4 is for plain ones");
    if (spec_.hidden % 32 != 0 || spec_.moe_width % 32 != 0)
      return unsupported(folder + ": experts of " + std::to_string(spec_.hidden) + " x " +
                         std::to_string(spec_.moe_width) + " cannot be rounded to int4 in groups of 32");
    formats.fill(WeightFormat::kInt4);
    return {};
  }

  /// Whether a tensor belongs to a layer behind the last one, which predicts further tokens (spec 12).
  bool is_prediction(std::string_view name) const {
    const std::uint32_t first = plan_.config.layers, n = plan_.config.prediction_layers;
    for (std::uint32_t layer = first; layer < first + n; ++layer)
      if (name.starts_with("model.layers." + std::to_string(layer) + ".")) return true;
    return false;
  }

  /// Holds a stored dense tensor against what the spec asks for.
  Status check_dense(const Entry& e, const DenseShape& want) const {
    const AttentionSpec& a = spec_.attention;
    const std::uint64_t rows = want.derivation == Derivation::kNone
                                   ? want.rows
                                   : std::uint64_t{a.heads} * (a.latent.nope + a.latent.value);
    const std::uint64_t cols = want.derivation == Derivation::kNone ? want.cols : a.latent.kv_rank;
    if (!(want.matrix ? has_shape(e, {rows, cols}) : has_shape(e, {cols}))) {
      const char* hint = want.name == "embed" || want.name == "head" ? " (vocab_size, hidden_size)" : "";
      return wrong_shape(plan_.checkpoint, e, (want.matrix ? dims({rows, cols}) : dims({cols})) + hint);
    }
    if (plain_format(e.info->dtype)) return {};
    return unsupported(where(plan_.checkpoint, e) + ": dtype " + std::string(name_of(e.info->dtype)) +
                       " is not supported for a dense tensor; supported: F32, BF16, F16");
  }

  Error unknown(const Entry& e) const {
    return unsupported(where(plan_.checkpoint, e) + ": is not known to " + plan_.config.model_type +
                       "; nothing of a checkpoint is dropped silently");
  }

  Status sort(const Entry& e) {
    std::string scratch;
    const std::string_view stored = e.info->name;
    const bool wrapped = plan_.config.text != plan_.config.root.get();
    const std::string_view plain = wrapped ? without_wrapper(stored, scratch) : stored;
    if (is_prediction(plain)) {
      ++skipped_;
      return {};
    }
    const TensorName name = split_name(plain);
    const auto m = match_name(*plan_.config.family, name.module);
    if (!m) return unknown(e);
    if (m->rule->role == Role::kSkip) return {};
    if (m->layer >= spec_.layers.size()) {
      return invalid(where(plan_.checkpoint, e) + ": num_hidden_layers is " +
                     std::to_string(spec_.layers.size()));
    }
    switch (m->rule->role) {
      case Role::kDense:
        return sort_dense(e, name, *m);
      case Role::kExpert:
        return sort_expert(e, name, *m);
      case Role::kFusedExpert:
      case Role::kTransposed:
      case Role::kFusedBias:
      case Role::kBlocks:
      case Role::kBlockScales:
        return sort_fused(e, name, *m);
      case Role::kSkip:
        break;
    }
    return {};
  }

  Status sort_dense(const Entry& e, const TensorName& name, const NameMatch& m) {
    std::string canonical = fill_name(m.rule->canonical, m.layer);
    if (name.kind == Kind::kBias)
      canonical += ".bias";
    else if (name.kind == Kind::kPacked || name.kind == Kind::kScale || name.kind == Kind::kZeroPoint ||
             name.kind == Kind::kShape) {
      return unsupported(where(plan_.checkpoint, e) +
                         ": a quantised dense tensor is not supported; only experts may be");
    } else if ((name.kind != Kind::kWeight) != m.rule->bare)
      return unknown(e);
    dense_.emplace(std::move(canonical), &e);
    return {};
  }

  Status sort_expert(const Entry& e, const TensorName& name, const NameMatch& m) {
    auto& layer = plan_.experts[m.layer];
    if (layer.empty())
      return invalid(where(plan_.checkpoint, e) + ": the config says that this layer has no experts");
    if (m.expert >= layer.size()) {
      return invalid(where(plan_.checkpoint, e) + ": the config says that there are " +
                     std::to_string(layer.size()) + " experts");
    }
    PartSource& p = layer[m.expert][static_cast<std::size_t>(m.rule->part)];
    switch (name.kind) {
      case Kind::kWeight:
      case Kind::kPacked:
        if (p.data) return invalid(where(plan_.checkpoint, e) + ": is stored both plain and packed");
        p.data = &e;
        p.packed = name.kind == Kind::kPacked;
        return {};
      case Kind::kScale:
        p.scale = &e;
        return {};
      case Kind::kShape:
        p.shape = &e;
        return {};
      case Kind::kZeroPoint:
        return unsupported(where(plan_.checkpoint, e) + ": asymmetric int4 (zero points) is not supported");
      case Kind::kBias:
      case Kind::kOther:
        break;
    }
    return unknown(e);
  }

  Status sort_fused(const Entry& e, const TensorName& name, const NameMatch& m) {
    if (plan_.experts[m.layer].empty()) {
      return invalid(where(plan_.checkpoint, e) + ": the config says that this layer has no experts");
    }
    if (name.kind != Kind::kOther && name.kind != Kind::kWeight) {
      return unsupported(where(plan_.checkpoint, e) + ": quantised experts in one tensor are not supported");
    }
    const Role role = m.rule->role;
    auto& table = role == Role::kFusedBias     ? fused_bias_
                  : role == Role::kBlockScales ? block_scales_
                                               : fused_;
    auto& slot = table[m.layer][m.rule->part == Part::kGateUp ? 0 : 1];
    if (slot == nullptr && &table == &fused_ && fused_role_.value_or(role) != role)
      return invalid(where(plan_.checkpoint, e) + ": experts are stored in two forms");
    if (&table == &fused_) fused_role_ = role;
    if (slot) return invalid(where(plan_.checkpoint, e) + ": is stored twice");
    slot = &e;
    return {};
  }

  /// Points the experts of a layer into `gate_up_proj` [experts, 2 width, hidden] and `down_proj`
  /// [experts, hidden, width].
  Status split_fused(std::uint32_t layer) {
    const auto [gate_up, down] = fused_[layer];
    if (!gate_up && !down) return {};
    const std::uint64_t n = spec_.router.experts, w = spec_.moe_width, h = spec_.hidden;
    const std::string folder = plan_.checkpoint.folder() + ": layer " + std::to_string(layer);
    if (!gate_up || !down)
      return invalid(folder + " has only one of experts.gate_up_proj and experts.down_proj");
    if (fused_role_ != Role::kFusedExpert) return split_in_turn(layer);
    if (!has_shape(*gate_up, {n, 2 * w, h}))
      return wrong_shape(plan_.checkpoint, *gate_up, dims({n, 2 * w, h}));
    if (!has_shape(*down, {n, h, w})) return wrong_shape(plan_.checkpoint, *down, dims({n, h, w}));
    const std::uint64_t matrix_up = w * h * bits_of(gate_up->info->dtype) / 8;
    const std::uint64_t matrix_down = w * h * bits_of(down->info->dtype) / 8;
    for (std::uint64_t e = 0; e < n; ++e) {
      ExpertSource& x = plan_.experts[layer][e];
      if (x[0].data || x[1].data || x[2].data)
        return invalid(folder + " has its experts both fused and apart");
      x[0].data = x[1].data = gate_up;
      x[0].offset = 2 * e * matrix_up;
      x[1].offset = x[0].offset + matrix_up;
      x[2].data = down;
      x[2].offset = e * matrix_down;
    }
    return {};
  }

  /// The same where gate and up take turns, with biases: `gate_up_proj` [experts, hidden, 2 width] and
  /// `down_proj` [experts, width, hidden], or their MXFP4 blocks and scales, in which rows are rows.
  Status split_in_turn(std::uint32_t layer) {
    const bool blocks = fused_role_ == Role::kBlocks;
    const Checkpoint& c = plan_.checkpoint;
    const std::uint32_t n = spec_.router.experts, w = spec_.moe_width, h = spec_.hidden;
    if (blocks && (w % 32 != 0 || h % 32 != 0))
      return unsupported(c.folder() + ": MXFP4 weights of " + std::to_string(h) + " x " + std::to_string(w) +
                         ", which are not multiples of 32");
    for (const std::uint32_t part : {0u, 1u}) {
      const Entry* const data = fused_[layer][part];
      const Entry* const bias = fused_bias_[layer][part];
      const Entry* const scale = block_scales_[layer][part];
      const std::uint32_t rows = part == 0 ? 2 * w : h, cols = part == 0 ? h : w;
      const std::string place = c.folder() + ": layer " + std::to_string(layer);
      if (bias == nullptr) return not_found(place + " lacks biases of its experts");
      if (!has_shape(*bias, {n, rows})) return wrong_shape(c, *bias, dims({n, rows}));
      if (!plain_format(bias->info->dtype))
        return unsupported(where(c, *bias) + ": dtype " + std::string(name_of(bias->info->dtype)) +
                           " is not supported for a bias; supported: F32, BF16, F16");
      if (blocks) {
        if (scale == nullptr) return not_found(place + " lacks scales of its experts");
        if (data->info->dtype != Dtype::kU8 || !has_shape(*data, {n, rows, cols / 32, 16}))
          return wrong_shape(c, *data, "U8 " + dims({n, rows, cols / 32, 16}));
        if (scale->info->dtype != Dtype::kU8 || !has_shape(*scale, {n, rows, cols / 32}))
          return wrong_shape(c, *scale, "U8 " + dims({n, rows, cols / 32}));
      } else {
        if (scale != nullptr) return unknown(*scale);
        if (!has_shape(*data, {n, cols, rows})) return wrong_shape(c, *data, dims({n, cols, rows}));
      }
      const std::uint64_t bytes = std::uint64_t{rows} * cols * (blocks ? 4 : bits_of(data->info->dtype)) / 8;
      for (std::uint32_t e = 0; e < n; ++e)
        for (std::uint32_t turn = 0; turn < (part == 0 ? 2u : 1u); ++turn) {
          PartSource& p = plan_.experts[layer][e][part == 0 ? turn : 2];
          p.data = data;
          p.scale = scale;
          p.bias = bias;
          p.offset = e * bytes;
          p.bias_offset = std::uint64_t{e} * rows;
          p.transposed = !blocks;
          p.first = turn;
          p.step = part == 0 ? 2 : 1;
        }
    }
    return {};
  }

  Status check_part(std::uint32_t layer, std::uint32_t expert, std::size_t part,
                    std::array<std::optional<WeightFormat>, 3>& formats) {
    const PartSource& p = plan_.experts[layer][expert][part];
    const std::uint64_t rows = part == 2 ? spec_.hidden : spec_.moe_width;
    const std::uint64_t cols = part == 2 ? spec_.moe_width : spec_.hidden;
    if (!p.data) {
      return not_found(plan_.checkpoint.folder() + ": the " + std::string(kPartNames[part]) +
                       " matrix of layer " + std::to_string(layer) + " expert " + std::to_string(expert) +
                       " is missing");
    }
    std::optional<WeightFormat> format;
    if (fused_role_ == Role::kBlocks) {
      format = WeightFormat::kMxfp4;
    } else if (p.packed) {
      WISP_TRY(check_packed(p, rows, cols));
      format = WeightFormat::kInt4;
    } else {
      if (p.scale || p.shape) return unknown(p.scale ? *p.scale : *p.shape);
      const bool fused = p.data->info->shape.size() == 3;
      if (!fused && !has_shape(*p.data, {rows, cols}))
        return wrong_shape(plan_.checkpoint, *p.data, dims({rows, cols}));
      format = plain_format(p.data->info->dtype);
      if (!format) {
        return unsupported(where(plan_.checkpoint, *p.data) + ": dtype " +
                           std::string(name_of(p.data->info->dtype)) +
                           " is not supported for an expert; supported: F32, BF16, F16, packed int4");
      }
    }
    // Every slot of the cache has one shape, so all experts must agree; gate and up share their format.
    auto& agreed = formats[part == 1 ? 0 : part];
    if (!agreed) agreed = format;
    if (*agreed == *format) return {};
    return unsupported(where(plan_.checkpoint, *p.data) + ": is " + std::string(kernels::name_of(*format)) +
                       ", the same matrix of other experts is " + std::string(kernels::name_of(*agreed)) +
                       "; experts of mixed formats are not supported");
  }

  Status check_packed(const PartSource& p, std::uint64_t rows, std::uint64_t cols) {
    const Checkpoint& c = plan_.checkpoint;
    const std::uint64_t group = plan_.config.quant.group;
    if (group == 0) {
      return invalid(where(c, *p.data) + ": packed weights, but config.json has no quantization_config");
    }
    if (p.data->info->dtype != Dtype::kI32 || !has_shape(*p.data, {rows, (cols + 7) / 8})) {
      return wrong_shape(c, *p.data, "I32 " + dims({rows, (cols + 7) / 8}));
    }
    if (cols % group != 0) {
      return unsupported(where(c, *p.data) + ": " + std::to_string(cols) +
                         " columns are not a multiple of the group of " + std::to_string(group));
    }
    if (!p.scale) return not_found(where(c, *p.data) + ": its weight_scale is missing");
    if (!has_shape(*p.scale, {rows, cols / group}))
      return wrong_shape(c, *p.scale, dims({rows, cols / group}));
    if (!plain_format(p.scale->info->dtype)) {
      return unsupported(where(c, *p.scale) + ": scales of dtype " +
                         std::string(name_of(p.scale->info->dtype)) +
                         " are not supported; supported: BF16, and F16 or F32 where they are exact in BF16");
    }
    if (!p.shape) return {};
    if (p.shape->info->dtype != Dtype::kI64 || !has_shape(*p.shape, {2}))
      return wrong_shape(c, *p.shape, "I64 [2]");
    std::uint64_t stored[2];
    std::uint8_t raw[16];
    WISP_TRY(c.read(*p.shape, 0, raw));
    std::memcpy(stored, raw, sizeof raw);
    if (stored[0] != rows || stored[1] != cols) {
      return invalid(where(c, *p.shape) + ": says " + dims({stored[0], stored[1]}) + ", the config needs " +
                     dims({rows, cols}));
    }
    return {};
  }

  ConvertPlan& plan_;
  ModelSpec& spec_;
  std::map<std::string, const Entry*> dense_;
  std::size_t skipped_ = 0;
  std::vector<std::array<const Entry*, 2>> fused_;         ///< [layers] gate_up, down
  std::vector<std::array<const Entry*, 2>> fused_bias_;    ///< same
  std::vector<std::array<const Entry*, 2>> block_scales_;  ///< same
  std::optional<Role> fused_role_;                         ///< how all of `fused_` lie
};

}  // namespace

Status assign_tensors(ConvertPlan& plan) {
  if (plan.manifest.spec.expert_count() > kMaxExpertsInAll) {  // before tables of that size are made
    return invalid(plan.checkpoint.folder() + ": config.json: claims " +
                   std::to_string(plan.manifest.spec.expert_count()) + " experts in all; at most " +
                   std::to_string(kMaxExpertsInAll) + " are allowed");
  }
  Sorter sorter(plan);
  WISP_TRY(sorter.sort_all());
  WISP_TRY(sorter.assign_dense());
  return sorter.assign_experts();
}

}  // namespace wisp::model
