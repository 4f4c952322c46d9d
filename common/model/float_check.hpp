#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "model/safetensors.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::model {

/// The index of the first element that is NaN or infinite.
std::optional<std::size_t> first_non_finite(kernels::WeightFormat f, std::span<const std::uint8_t> data);

/// The format of a plain weight dtype, or nothing.
std::optional<kernels::WeightFormat> plain_format(Dtype t);

}  // namespace wisp::model
