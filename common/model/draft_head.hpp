#pragma once
#include <memory>

#include "base/result.hpp"
#include "model/convert_plan.hpp"
#include "model/model_spec.hpp"

namespace wisp::model {

/// The layer behind a model's last one, which predicts the token after the next (MTP; spec 7, 8 and 12), as a
/// model of one layer: x = join [embed_norm(embedding of token p + 1) ; hidden_norm(row p)], the layer,
/// `norm`, and the model's own output matrix. Row p is the model's, behind its last norm. Its experts' form
/// is open.
ModelSpec draft_head_spec(const ModelSpec& model);

/// Errors: kInvalid where `head` is none of `model`.
Status check_draft_head(const ModelSpec& head, const ModelSpec& model);

/// What a head shares with its model, as a manifest without layers: embedding and output matrix, one behind
/// the other from offset 0 on.
Manifest draft_head_tables(const Manifest& model);

/// Plans the head of a checkpoint whose own layers are sorted out already. Its copies of embedding and output
/// matrix are left aside: they are the model's. Errors, with the way out: those of sort_tensors and
/// fit_tensors.
Result<std::unique_ptr<ConvertPlan>> plan_draft_head(const ConvertPlan& model);

}  // namespace wisp::model
