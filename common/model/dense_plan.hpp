#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.hpp"

namespace wisp::model {

/// How a dense tensor comes from the stored one. The two parts of `attn.kv_b` [heads * (nope + value),
/// kv_rank] (spec 2.5), each head padded to whole tiles with rows of zeros:
enum class Derivation : std::uint8_t {
  kNone,
  kKeyUp,    ///< the first `nope` rows of each head, transposed: [heads * key_up_rows, nope]
  kValueUp,  ///< the `value` rows behind them: [heads * value_up_rows, kv_rank]
};

/// A dense tensor that a model of some spec must have.
struct DenseShape {
  std::string name;  ///< canonical
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  bool matrix = true;  ///< tiled; a vector has one row and is stored plain
  Derivation derivation = Derivation::kNone;
  bool chooses = false;  ///< decides what is computed at all (routers, indexers): never rounded
};

/// Every dense tensor of the model, in the order in which a forward pass meets them: the order in the file.
std::vector<DenseShape> dense_shapes(const ModelSpec& m);

}  // namespace wisp::model
