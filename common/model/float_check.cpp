#include "model/float_check.hpp"

#include <algorithm>
#include <cstring>

namespace wisp::model {
namespace {

using kernels::WeightFormat;

/// An element whose exponent bits are all ones is infinite or no number. Blocks, so that the loop vectorises.
template <class T>
std::optional<std::size_t> find_exponent(std::span<const std::uint8_t> data, T mask) {
  constexpr std::size_t kBlock = 4096;
  T block[kBlock];
  const std::size_t n = data.size() / sizeof(T);
  for (std::size_t at = 0; at < n; at += kBlock) {
    const std::size_t count = n - at < kBlock ? n - at : kBlock;
    std::memcpy(block, data.data() + at * sizeof(T), count * sizeof(T));
    unsigned any = 0;
    for (std::size_t i = 0; i < count; ++i) any |= static_cast<unsigned>((block[i] & mask) == mask);
    if (any == 0) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if ((block[i] & mask) == mask) return at + i;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> first_non_finite(WeightFormat f, std::span<const std::uint8_t> data) {
  switch (f) {
    case WeightFormat::kF32:
      return find_exponent<std::uint32_t>(data, 0x7f800000u);
    case WeightFormat::kBf16:
      return find_exponent<std::uint16_t>(data, 0x7f80);
    case WeightFormat::kF16:
      return find_exponent<std::uint16_t>(data, 0x7c00);
    case WeightFormat::kFp8: {
      const auto bad =
          std::find_if(data.begin(), data.end(), [](std::uint8_t c) { return (c & 0x7f) == 0x7f; });
      if (bad == data.end()) return std::nullopt;
      return static_cast<std::size_t>(bad - data.begin());
    }
    default:
      return std::nullopt;
  }
}

std::optional<WeightFormat> plain_format(Dtype t) {
  switch (t) {
    case Dtype::kF32:
      return WeightFormat::kF32;
    case Dtype::kBf16:
      return WeightFormat::kBf16;
    case Dtype::kF16:
      return WeightFormat::kF16;
    default:
      return std::nullopt;
  }
}

}  // namespace wisp::model
