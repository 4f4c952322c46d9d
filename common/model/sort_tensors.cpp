#include "model/convert_plan.hpp"
#include "model/family.hpp"

namespace wisp::model {
namespace {

using Entry = Checkpoint::Entry;
using Kind = TensorName::Kind;

/// A name in the forms that it may stand for: as it is; without the level that multimodal wrappers put above
/// the text model; with the level that some exports leave out.
std::vector<std::string> readings_of(const std::string& name) {
  std::vector<std::string> out{name};
  for (const std::string_view wrapper : {"language_model.model.", "model.language_model."})
    if (name.starts_with(wrapper)) out.push_back("model." + name.substr(wrapper.size()));
  if (name.starts_with("language_model.")) out.push_back(name.substr(15));
  if (!name.starts_with("model.")) out.push_back("model." + name);
  return out;
}

class Sorter {
 public:
  explicit Sorter(const ConvertPlan& plan) : plan_(plan), spec_(plan.manifest.spec) {
    out_.experts.resize(spec_.layers.size());
    out_.fused.resize(spec_.layers.size());
    out_.fused_bias.resize(spec_.layers.size());
    out_.block_scales.resize(spec_.layers.size());
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      if (spec_.layers[i].moe) out_.experts[i].resize(spec_.router.experts);
    }
  }

  Result<SortedTensors> sort_all() {
    for (const auto& e : plan_.checkpoint->entries()) WISP_TRY(sort(e));
    return std::move(out_);
  }

 private:
  /// Which of the layers behind the last one, which predict further tokens (spec 12), a tensor belongs to.
  std::optional<std::uint32_t> prediction(std::string_view name) const {
    for (std::uint32_t i = 0; i < plan_.config.prediction_layers; ++i)
      if (name.starts_with("model.layers." + std::to_string(plan_.config.layers + i) + ".")) return i;
    return std::nullopt;
  }

  std::string place(const Entry& e) const { return where(*plan_.checkpoint, e); }

  Error unknown(const Entry& e) const {
    return unsupported(place(e) + ": is not known to " + plan_.config.model_type +
                       "; nothing of a checkpoint is dropped silently");
  }

  Status put(const Entry& e, const Entry*& slot) const {
    if (slot != nullptr)
      return invalid(place(e) + ": is stored twice, also as " + printable(slot->info->name));
    slot = &e;
    return {};
  }

  Status sort(const Entry& e) {
    for (const std::string& name : readings_of(e.info->name)) {
      const auto behind = prediction(name);
      const bool own = spec_.draft_head && behind == 0u;
      if (behind && !own) {
        ++out_.predictions;
        return {};
      }
      const TensorName cut = split_name(name);
      auto m = match_name(*plan_.config.family, cut.module, own);
      if (!m) continue;
      if (spec_.draft_head && !own) return {};  // the model's
      if (own) m->layer = 0;
      return sort_as(e, cut, *m);
    }
    return unknown(e);
  }

  Status sort_as(const Entry& e, const TensorName& name, const NameMatch& m) {
    if (m.rule->role == Role::kSkip) return {};
    if (m.layer >= spec_.layers.size())
      return invalid(place(e) + ": num_hidden_layers is " + std::to_string(spec_.layers.size()));
    switch (m.rule->role) {
      case Role::kDense:
        return sort_dense(e, name, m);
      case Role::kExpert:
        return sort_expert(e, name, m);
      case Role::kFusedExpert:
      case Role::kTransposed:
      case Role::kFusedBias:
      case Role::kBlocks:
      case Role::kBlockScales:
        return sort_fused(e, name, m);
      case Role::kSkip:
        break;
    }
    return {};
  }

  Status sort_dense(const Entry& e, const TensorName& name, const NameMatch& m) {
    const std::string canonical = fill_name(m.rule->canonical, m.layer);
    if (name.kind == Kind::kBias) return put(e, out_.dense[canonical + ".bias"][Kind::kWeight]);
    if (m.rule->bare != (name.kind == Kind::kOther)) return unknown(e);
    return put(e, out_.dense[canonical][m.rule->bare ? Kind::kWeight : name.kind]);
  }

  Status sort_expert(const Entry& e, const TensorName& name, const NameMatch& m) {
    auto& layer = out_.experts[m.layer];
    if (layer.empty()) return invalid(place(e) + ": the config says that this layer has no experts");
    if (m.expert >= layer.size()) {
      return invalid(place(e) + ": the config says that there are " + std::to_string(layer.size()) +
                     " experts");
    }
    if (name.kind == Kind::kBias || name.kind == Kind::kOther) return unknown(e);
    return put(e, layer[m.expert][static_cast<std::size_t>(m.rule->part)][name.kind]);
  }

  Status sort_fused(const Entry& e, const TensorName& name, const NameMatch& m) {
    if (out_.experts[m.layer].empty())
      return invalid(place(e) + ": the config says that this layer has no experts");
    if (name.kind != Kind::kOther && name.kind != Kind::kWeight)
      return unsupported(place(e) + ": quantised experts in one tensor are not supported");
    const Role role = m.rule->role;
    auto& table = role == Role::kFusedBias     ? out_.fused_bias
                  : role == Role::kBlockScales ? out_.block_scales
                                               : out_.fused;
    if (&table == &out_.fused) {
      if (out_.fused_role.value_or(role) != role)
        return invalid(place(e) + ": experts are stored in two forms");
      out_.fused_role = role;
    }
    return put(e, table[m.layer][m.rule->part == Part::kGateUp ? 0 : 1]);
  }

  const ConvertPlan& plan_;
  const ModelSpec& spec_;
  SortedTensors out_;
};

}  // namespace

Result<SortedTensors> sort_tensors(const ConvertPlan& plan) {
  return Sorter(plan).sort_all();
}

}  // namespace wisp::model
