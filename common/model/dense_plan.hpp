#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.hpp"

namespace wisp::model {

/// A dense tensor that a model of some spec must have.
struct DenseShape {
  std::string name;  ///< canonical
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  bool matrix = true;  ///< tiled; a vector has one row and is stored plain
};

/// Every dense tensor of the model, in the order in which a forward pass meets them: the order in the file.
std::vector<DenseShape> dense_shapes(const ModelSpec& m);

}  // namespace wisp::model
