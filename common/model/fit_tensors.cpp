#include <algorithm>
#include <set>

#include "model/convert_plan.hpp"
#include "model/encode.hpp"
#include "model/family.hpp"
#include "model/float_check.hpp"

namespace wisp::model {
namespace {

using Entry = Checkpoint::Entry;
using Kind = TensorName::Kind;
using kernels::WeightFormat;

constexpr std::array<std::string_view, 3> kPartNames{"gate", "up", "down"};

/// Holds what was found against what the spec asks for.
class Fitter {
 public:
  Fitter(const SortedTensors& sorted, ConvertPlan& plan)
      : sorted_(sorted), plan_(plan), c_(*plan.checkpoint), spec_(plan.manifest.spec) {}

  Status fit_dense() {
    spec_.tied_head = !spec_.draft_head && !sorted_.dense.contains("head");
    if (spec_.tied_head && plan_.config.tied == false) {
      plan_.notes.push_back(
          "lm_head.weight is not stored although tie_word_embeddings is false: the embedding is used");
    }
    std::set<std::string> used;
    for (const auto& want : dense_shapes(spec_)) {
      const bool derived = want.derivation != Derivation::kNone;
      const std::string stored = derived ? want.name.substr(0, want.name.rfind('.')) + ".kv_b" : want.name;
      const auto it = sorted_.dense.find(stored);
      if (it == sorted_.dense.end()) {
        const bool bias = stored.ends_with(".bias");
        return not_found(c_.folder() + ": tensor " + source_name(stored) + " is missing" +
                         (bias ? ", but the config says that there is such a bias" : ""));
      }
      used.insert(stored);
      WISP_TRY(want.matrix ? fit_matrix(it->second, want) : fit_vector(it->second, want));
    }
    for (const auto& [name, parts] : sorted_.dense) {
      if (used.contains(name)) continue;
      const Entry* const e =
          *std::find_if(parts.of.begin(), parts.of.end(), [](auto* p) { return p != nullptr; });
      const char* why = name.ends_with(".bias")
                            ? ": is stored, but the config says that there is no such bias"
                            : ": is stored, but the config gives this layer no such tensor";
      return invalid(where(c_, *e) + why);
    }
    return {};
  }

  Status fit_experts() {
    plan_.experts.resize(spec_.layers.size());
    if (spec_.moe_layers() == 0) return {};
    for (std::uint32_t layer = 0; layer < plan_.experts.size(); ++layer) {
      plan_.experts[layer].resize(sorted_.experts[layer].size());
      WISP_TRY(split_fused(layer));
      for (std::uint32_t e = 0; e < plan_.experts[layer].size(); ++e)
        for (std::size_t p = 0; p < 3; ++p) WISP_TRY(fit_part(layer, e, p));
    }
    return choose_form();
  }

 private:
  std::string source_name(const std::string& canonical) const {
    const auto layer = spec_.draft_head ? std::optional(plan_.config.layers) : std::nullopt;
    return source_of(*plan_.config.family, canonical, layer);
  }

  Status fit_vector(const ModuleParts& parts, const DenseShape& want) {
    const Entry* const e = parts[Kind::kWeight];
    for (const Entry* other : parts.of)
      if (other != nullptr && other != e)
        return unsupported(where(c_, *other) + ": a vector cannot be stored with scales");
    if (!has_shape(*e, {want.cols})) return wrong_shape(c_, *e, dims({want.cols}));
    const auto format = plain_format(e->info->dtype);
    if (!format)
      return unsupported(where(c_, *e) + ": dtype " + std::string(name_of(e->info->dtype)) +
                         " is not supported for a vector; supported: F32, BF16, F16");
    plan_.items.push_back({want.name, *format, 1, want.cols, false, 0, false});
    StoredMatrix m;
    m.rows = 1;
    m.cols = want.cols;
    m.data = e;
    plan_.sources.push_back({m, Derivation::kNone});
    return {};
  }

  Status fit_matrix(const ModuleParts& parts, const DenseShape& want) {
    const AttentionSpec& a = spec_.attention;
    const bool derived = want.derivation != Derivation::kNone;
    const std::uint32_t rows = derived ? a.heads * (a.latent.nope + a.latent.value) : want.rows;
    const std::uint32_t cols = derived ? a.latent.kv_rank : want.cols;
    auto matched = match_storage(c_, plan_.config.quant, parts, rows, cols);
    if (!matched.ok()) {
      Error error = std::move(matched).error();
      if (want.name == "embed" || want.name == "head") error.text += " (vocab_size, hidden_size)";
      return error;
    }
    const StoredMatrix& m = *matched;
    DenseItem item{want.name, m.native(), want.rows, want.cols, true, m.group, m.act_order};
    if (derived) fit_derived(m, item);
    if (plan_.target.dense && *plan_.target.dense != item.format && !want.chooses) {
      item.format = *plan_.target.dense;
      item.group = kernels::is_coded(item.format) ? kRoundedGroup : 0;
      item.ordered = false;
    }
    if (item.ordered && (want.name == "embed" || want.name == "head"))
      return unsupported(where(c_, *m.data) +
                         ": an embedding or head with act order is not supported; --dense int8 rounds it");
    if (item.ordered) spec_.ordered_width = std::max(spec_.ordered_width, item.cols);
    plan_.items.push_back(std::move(item));
    plan_.sources.push_back({m, want.derivation});
    return {};
  }

  /// The form of a part of kv_b. Plain numbers are moved; blocks of fp8 keep their bits where none of them
  /// begins in the middle of a group or a tile; all else is written out, which rounds nothing but takes f32.
  void fit_derived(const StoredMatrix& m, DenseItem& item) const {
    const LatentSpec& l = spec_.attention.latent;
    if (m.storage == Storage::kPlain) return;
    item.group = 0;
    item.ordered = false;
    if (m.storage == Storage::kFp8 && l.nope % 32 == 0 && l.value % 32 == 0) {
      const bool along_heads = item.cols == l.nope && item.name.ends_with("k_up");
      item.group = m.group;
      while (along_heads && (l.nope + l.value) % item.group != 0) item.group /= 2;
      return;
    }
    item.format = WeightFormat::kF32;
  }

  /// Points the experts of a layer into `gate_up_proj` [experts, 2 width, hidden] and `down_proj`
  /// [experts, hidden, width].
  Status split_fused(std::uint32_t layer) {
    const auto [gate_up, down] = sorted_.fused[layer];
    if (!gate_up && !down) return {};
    const std::uint64_t n = spec_.router.experts, w = spec_.moe_width, h = spec_.hidden;
    const std::string place = c_.folder() + ": layer " + std::to_string(layer);
    if (!gate_up || !down)
      return invalid(place + " has only one of experts.gate_up_proj and experts.down_proj");
    for (const auto& parts : sorted_.experts[layer])
      for (const auto& part : parts)
        if (!part.empty()) return invalid(place + " has its experts both fused and apart");
    if (sorted_.fused_role != Role::kFusedExpert) return split_in_turn(layer);
    if (!has_shape(*gate_up, {n, 2 * w, h})) return wrong_shape(c_, *gate_up, dims({n, 2 * w, h}));
    if (!has_shape(*down, {n, h, w})) return wrong_shape(c_, *down, dims({n, h, w}));
    WISP_TRY(check_plain(*gate_up));
    WISP_TRY(check_plain(*down));
    const std::uint64_t matrix_up = w * h * bits_of(gate_up->info->dtype) / 8;
    const std::uint64_t matrix_down = w * h * bits_of(down->info->dtype) / 8;
    for (std::uint64_t e = 0; e < n; ++e) {
      ExpertSource& x = plan_.experts[layer][e];
      x[0].data = x[1].data = gate_up;
      x[0].offset = 2 * e * matrix_up;
      x[1].offset = x[0].offset + matrix_up;
      x[2].data = down;
      x[2].offset = e * matrix_down;
    }
    return {};
  }

  Status check_plain(const Entry& e) const {
    if (plain_format(e.info->dtype)) return {};
    return unsupported(where(c_, e) + ": dtype " + std::string(name_of(e.info->dtype)) +
                       " is not supported here; supported: F32, BF16, F16");
  }

  /// The same where gate and up take turns, with biases: `gate_up_proj` [experts, hidden, 2 width] and
  /// `down_proj` [experts, width, hidden], or their MXFP4 blocks and scales, in which rows are rows.
  Status split_in_turn(std::uint32_t layer) {
    const bool blocks = sorted_.fused_role == Role::kBlocks;
    const std::uint32_t n = spec_.router.experts, w = spec_.moe_width, h = spec_.hidden;
    if (blocks && (w % 32 != 0 || h % 32 != 0))
      return unsupported(c_.folder() + ": MXFP4 weights of " + std::to_string(h) + " x " + std::to_string(w) +
                         ", which are not multiples of 32");
    for (const std::uint32_t part : {0u, 1u}) {
      const Entry* const data = sorted_.fused[layer][part];
      const Entry* const bias = sorted_.fused_bias[layer][part];
      const Entry* const scale = sorted_.block_scales[layer][part];
      const std::uint32_t rows = part == 0 ? 2 * w : h, cols = part == 0 ? h : w;
      const std::string place = c_.folder() + ": layer " + std::to_string(layer);
      if (bias == nullptr) return not_found(place + " lacks biases of its experts");
      if (!has_shape(*bias, {n, rows})) return wrong_shape(c_, *bias, dims({n, rows}));
      WISP_TRY(check_plain(*bias));
      if (blocks) {
        if (scale == nullptr) return not_found(place + " lacks scales of its experts");
        if (data->info->dtype != Dtype::kU8 || !has_shape(*data, {n, rows, cols / 32, 16}))
          return wrong_shape(c_, *data, "U8 " + dims({n, rows, cols / 32, 16}));
        if (scale->info->dtype != Dtype::kU8 || !has_shape(*scale, {n, rows, cols / 32}))
          return wrong_shape(c_, *scale, "U8 " + dims({n, rows, cols / 32}));
      } else {
        if (scale != nullptr)
          return unsupported(where(c_, *scale) + ": scales without blocks that they belong to");
        if (!has_shape(*data, {n, cols, rows})) return wrong_shape(c_, *data, dims({n, cols, rows}));
        WISP_TRY(check_plain(*data));
      }
      const std::uint64_t bytes = std::uint64_t{rows} * cols * (blocks ? 4 : bits_of(data->info->dtype)) / 8;
      for (std::uint32_t e = 0; e < n; ++e)
        for (std::uint32_t turn = 0; turn < (part == 0 ? 2u : 1u); ++turn) {
          StoredMatrix& m = plan_.experts[layer][e][part == 0 ? turn : 2];
          m.storage = blocks ? Storage::kBlocks : Storage::kPlain;
          m.group = blocks ? 32 : 0;
          m.data = data;
          m.scale = scale;
          m.bias = bias;
          m.offset = e * bytes;
          m.bias_offset = std::uint64_t{e} * rows;
          m.transposed = !blocks;
          m.first = turn;
          m.step = part == 0 ? 2 : 1;
        }
    }
    return {};
  }

  /// One matrix of one expert. Every slot of the cache has one shape, so all experts must agree; gate and up
  /// share their form.
  Status fit_part(std::uint32_t layer, std::uint32_t expert, std::size_t part) {
    StoredMatrix& m = plan_.experts[layer][expert][part];
    const std::uint32_t rows = part == 2 ? spec_.hidden : spec_.moe_width;
    const std::uint32_t cols = part == 2 ? spec_.moe_width : spec_.hidden;
    if (m.data != nullptr) {
      m.rows = rows;
      m.cols = cols;
    } else {
      const ModuleParts& parts = sorted_.experts[layer][expert][part];
      if (!parts[Kind::kWeight] && !parts[Kind::kPacked] && !parts[Kind::kQWeight]) {
        return not_found(c_.folder() + ": the " + std::string(kPartNames[part]) + " matrix of layer " +
                         std::to_string(layer) + " expert " + std::to_string(expert) + " is missing");
      }
      WISP_ASSIGN(m, match_storage(c_, plan_.config.quant, parts, rows, cols));
    }
    const StoredMatrix*& agreed = agreed_[part == 1 ? 0 : part];
    if (agreed == nullptr) agreed = &m;
    if (agreed->native() == m.native() && agreed->act_order == m.act_order) return {};
    return unsupported(where(c_, *m.data) + ": is " + std::string(kernels::name_of(m.native())) +
                       ", the same matrix of other experts is " +
                       std::string(kernels::name_of(agreed->native())) +
                       "; experts of mixed formats are not supported");
  }

  /// What experts are rounded to. A draft head gains nothing by fewer than eight bits: its guesses are rarely
  /// right then (spec 12).
  std::optional<WeightFormat> expert_target(const StoredMatrix& gate, const StoredMatrix& down) const {
    const auto target = plan_.target.experts;
    if (!spec_.draft_head || !target) return target;
    for (const StoredMatrix* m : {&gate, &down})
      if (kernels::columns_per_dword(m->native()) == 8) return std::nullopt;
    return *target == WeightFormat::kInt4 ? WeightFormat::kInt8 : target;
  }

  Status choose_form() {
    const StoredMatrix &gate = *agreed_[0], &down = *agreed_[2];
    ExpertForm form{gate.native(), down.native(),     gate.group,
                    down.group,    spec_.expert_bias, gate.act_order || down.act_order};
    if (const auto target = expert_target(gate, down)) {
      for (const StoredMatrix* m : {&gate, &down})
        if (*target == WeightFormat::kInt4 && kernels::columns_per_dword(m->native()) == 8)
          return invalid(c_.folder() + ": its experts are " + std::string(kernels::name_of(m->native())) +
                         " already; --experts int4 is for wider ones");
      if (kernels::columns_per_dword(gate.native()) == 8)
        plan_.notes.push_back("the experts are stored in four bits: as " + std::string(name_of(*target)) +
                              " they take more room and are no better");
      const std::uint32_t group = kernels::is_coded(*target) ? kRoundedGroup : 0;
      if (*target != form.gate_up) form.gate_up_group = group;
      if (*target != form.down) form.down_group = group;
      form.gate_up = form.down = *target;
      form.ordered = false;
    }
    if (form.ordered) spec_.ordered_width = std::max({spec_.ordered_width, spec_.hidden, spec_.moe_width});
    spec_.expert = lay_out_expert(spec_.hidden, spec_.moe_width, form);
    return {};
  }

  const SortedTensors& sorted_;
  ConvertPlan& plan_;
  const Checkpoint& c_;
  ModelSpec& spec_;
  std::array<const StoredMatrix*, 3> agreed_{};  ///< the first gate and the first down matrix
};

}  // namespace

Status fit_tensors(const SortedTensors& sorted, ConvertPlan& plan) {
  Fitter fitter(sorted, plan);
  WISP_TRY(fitter.fit_dense());
  return fitter.fit_experts();
}

}  // namespace wisp::model
