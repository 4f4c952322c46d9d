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

/// Scales as stored (BF16, F16 or F32) to bf16, without rounding: an Error where one is not finite or not
/// exact.
Status scales_to_bf16(kernels::WeightFormat f, std::span<const std::uint8_t> data,
                      std::vector<std::uint16_t>& out);

}  // namespace wisp::model
