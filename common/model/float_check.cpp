#include "model/float_check.hpp"

#include <bit>
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

float widen_half(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t{h} >> 15 << 31;
  const std::uint32_t exponent = h >> 10 & 31u;
  const std::uint32_t mantissa = h & 1023u;
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact
  return sign != 0 ? -magnitude : magnitude;
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
    case WeightFormat::kInt4:
    case WeightFormat::kMxfp4:
      return std::nullopt;
  }
  return std::nullopt;
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

Status scales_to_bf16(WeightFormat f, std::span<const std::uint8_t> data, std::vector<std::uint16_t>& out) {
  if (const auto bad = first_non_finite(f, data)) {
    return invalid("element " + std::to_string(*bad) + " is not a finite number");
  }
  const std::size_t size = f == WeightFormat::kF32 ? 4 : 2;
  out.resize(data.size() / size);
  if (f == WeightFormat::kBf16) {
    std::memcpy(out.data(), data.data(), data.size());
    return {};
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t bits = 0;
    if (f == WeightFormat::kF32) {
      std::memcpy(&bits, data.data() + i * 4, 4);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, data.data() + i * 2, 2);
      bits = std::bit_cast<std::uint32_t>(widen_half(half));
    }
    if ((bits & 0xffffu) != 0) {
      return unsupported("element " + std::to_string(i) + " is not exact in bf16; " +
                         std::string(kernels::name_of(f)) + " scales are taken only where all of them are");
    }
    out[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  return {};
}

}  // namespace wisp::model
