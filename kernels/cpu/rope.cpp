#include "wisp/kernels/kernels.hpp"

namespace wisp::kernels {

void apply_rope(float* x, const RopeTable& table, std::uint32_t pos, bool interleaved) {
  const std::uint32_t pairs = table.width / 2;
  const float* cosine = table.cos + std::size_t{pos} * pairs;
  const float* sine = table.sin + std::size_t{pos} * pairs;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    float& a = interleaved ? x[2 * i] : x[i];
    float& b = interleaved ? x[2 * i + 1] : x[i + pairs];
    const float rotated_a = a * cosine[i] - b * sine[i];
    const float rotated_b = b * cosine[i] + a * sine[i];
    a = rotated_a;
    b = rotated_b;
  }
}

}  // namespace wisp::kernels
