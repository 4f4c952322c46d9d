#pragma once
#include <cstddef>
#include <string>

#include "base/result.hpp"
#include "model/manifest.hpp"

namespace wisp::speculator {

// Weights of a converted folder, read into memory of this process. What was read leaves the page cache: a
// second copy would be outside of the budget. Errors: kIo, kCorrupt, naming the file and the part.

/// The whole dense part of `m`: [m.dense_bytes].
Status read_dense(const std::string& folder, const model::Manifest& m, std::byte* to);
/// Those of its tensors that `wanted` has, to where that places them.
Status read_tensors(const std::string& folder, const model::Manifest& m, const model::Manifest& wanted,
                    std::byte* to);
/// All of its experts, layer by layer: [m.spec.expert_count(), stride].
Status read_experts(const std::string& folder, const model::Manifest& m, std::byte* to);

}  // namespace wisp::speculator
