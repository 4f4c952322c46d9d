#include "model/draft_head.hpp"

#include "model/dense_plan.hpp"
#include "model/limits.hpp"
#include "model/spec_json.hpp"

namespace wisp::model {
namespace {

Status fit(ConvertPlan& head) {
  WISP_ASSIGN(const SortedTensors sorted, sort_tensors(head));
  ModelSpec& spec = head.manifest.spec;
  // Some releases have none in this layer: it sees all positions then.
  if (!sorted.dense.contains(layer_tensor(0, "indexer.k"))) spec.attention.indexer = {};
  WISP_TRY(fit_tensors(sorted, head));
  if (sorted.predictions != 0)
    head.notes.push_back(std::to_string(sorted.predictions) +
                         " tensors of further layers that predict tokens are left out");
  return check_spec(spec);
}

}  // namespace

ModelSpec draft_head_spec(const ModelSpec& model) {
  ModelSpec head = model;
  head.draft_head = true;
  head.tied_head = false;
  head.layers.assign(1, LayerSpec{});
  head.expert = {};
  head.ordered_width = 0;
  return head;
}

Status check_draft_head(const ModelSpec& head, const ModelSpec& model) {
  ModelSpec want = draft_head_spec(model);
  want.expert = head.expert;
  want.ordered_width = head.ordered_width;
  if (head.attention.indexer.heads == 0) want.attention.indexer = {};
  if (spec_json(want) == spec_json(head)) return {};
  return invalid("the draft head is not one of this model; convert the model again");
}

Manifest draft_head_tables(const Manifest& model) {
  Manifest out;
  out.name = model.name;
  out.spec = model.spec;
  out.spec.layers.clear();
  out.dense_file = model.dense_file;
  for (const DenseShape& shape : dense_shapes(out.spec)) {
    if (shape.name == "norm") continue;  // the head has its own
    DenseTensor t = model.dense.at(shape.name);
    t.offset = out.dense_bytes;
    out.dense_bytes += round_up(t.bytes, kPlaneAlign);
    out.dense.emplace(shape.name, t);
  }
  out.dense_bytes = round_up(out.dense_bytes, kExtentAlign);
  return out;
}

Result<std::unique_ptr<ConvertPlan>> plan_draft_head(const ConvertPlan& model) {
  auto head = std::make_unique<ConvertPlan>();
  head->checkpoint = model.checkpoint;
  head->config = model.config;
  head->target = model.target;
  head->manifest.spec = draft_head_spec(model.manifest.spec);
  head->manifest.dense_file = "draft-head.safetensors";
  if (auto fitted = fit(*head); !fitted.ok()) {
    Error error = std::move(fitted).error();
    error.text += " (the layer that predicts further tokens; --no-draft-head leaves it out)";
    return error;
  }
  return head;
}

}  // namespace wisp::model
