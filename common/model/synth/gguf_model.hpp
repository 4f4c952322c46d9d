#pragma once
#include <string>
#include <vector>

#include "model/folder_writer.hpp"
#include "model/synth/random_weights.hpp"

namespace wisp::model {

/// Whether a model can be written as GGUF for llama.cpp. kUnsupported: a family that is not described here
/// (names the shapes that are), a format that GGUF has not with the same numbers.
Status check_gguf(const ModelSpec& spec, const std::vector<DenseItem>& items);

/// Writes the weights of a random model to `path` as llama.cpp reads them: the same numbers in another order,
/// int4 as Q4_0, int8 as Q8_0, norms and routers as F32; a vocabulary without texts. The model has passed
/// check_gguf. `progress` counts bytes. Gives the file's size.
Result<std::uint64_t> write_gguf(const std::string& path, bool replace, const std::string& name,
                                 const ModelSpec& spec, const std::vector<DenseItem>& items,
                                 const RandomWeights& weights, const ProgressFn& progress);

}  // namespace wisp::model
