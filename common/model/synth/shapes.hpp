#pragma once
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/model_spec.hpp"

namespace wisp::model {

struct SynthOptions;

/// A real model's shape: its published config, and how its weights that are always in memory are stored.
struct SynthShape {
  std::string name;
  ModelSpec spec;  ///< its experts have no form yet
  kernels::WeightFormat dense = kernels::WeightFormat::kBf16;
};

/// The names that SynthOptions::like takes.
std::vector<std::string> synth_shapes();

/// The shape that `like` names, with what the options override. Of a model whose first layers are dense at
/// least the last one keeps its experts; a router's groups are dropped where the experts do not fill them.
/// Errors: kUnsupported (a name that is not known, an option that the family has not), and all of a config.
Result<SynthShape> synth_shape(const SynthOptions& options);

}  // namespace wisp::model
