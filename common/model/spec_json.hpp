#pragma once
#include "model/json.hpp"
#include "model/model_spec.hpp"

/// The part of a manifest that describes the model, in both directions.
namespace wisp::model {

Json spec_json(const ModelSpec& m);
/// Reads and checks what spec_json writes. Errors: kInvalid, kUnsupported, by the name of the field.
Status parse_spec(const Fields& f, ModelSpec& m);
/// The field `format`. Errors: kUnsupported.
Result<kernels::WeightFormat> parse_format(const Fields& f);

}  // namespace wisp::model
