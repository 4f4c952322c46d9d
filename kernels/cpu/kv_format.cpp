#include "wisp/kernels/kv_format.hpp"

#include <cstring>

#include "wisp/kernels/number.hpp"

namespace wisp::kernels {
namespace {

template <class Number, class Widen>
void turn(const Number* page, std::uint32_t entries, Widen widen, float* y) {
  for (std::size_t d = 0; d < entries; ++d)
    for (std::size_t t = 0; t < kPageTokens; ++t) y[t * entries + d] = widen(page[d * kPageTokens + t]);
}

}  // namespace

void store_kv(KvFormat f, std::byte* to, std::size_t stride, const float* x, std::size_t n) {
  if (f == KvFormat::kBf16) {
    auto* numbers = reinterpret_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < n; ++i) numbers[i * stride] = float_to_bf16(x[i]);
  } else {
    auto* numbers = reinterpret_cast<float*>(to);
    for (std::size_t i = 0; i < n; ++i) numbers[i * stride] = x[i];
  }
}

void load_kv(KvFormat f, const std::byte* from, std::size_t n, float* y) {
  if (f == KvFormat::kBf16) {
    const auto* numbers = reinterpret_cast<const std::uint16_t*>(from);
    for (std::size_t i = 0; i < n; ++i) y[i] = bf16_to_float(numbers[i]);
  } else {
    std::memcpy(y, from, n * sizeof *y);
  }
}

void turn_kv_page(KvFormat f, const std::byte* page, std::uint32_t entries, float* y) {
  if (f == KvFormat::kBf16)
    turn(reinterpret_cast<const std::uint16_t*>(page), entries, bf16_to_float, y);
  else
    turn(
        reinterpret_cast<const float*>(page), entries, [](float x) { return x; }, y);
}

}  // namespace wisp::kernels
