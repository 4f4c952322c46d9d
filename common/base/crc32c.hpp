#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace wisp {

namespace detail {
constexpr std::array<std::uint32_t, 256> crc32c_table() {
  std::array<std::uint32_t, 256> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c & 1u) != 0 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
    t[i] = c;
  }
  return t;
}
inline constexpr auto kCrc32cTable = crc32c_table();
}  // namespace detail

/// CRC-32C (Castagnoli, RFC 3720 B.4) of `n` bytes, continued from `crc` (0 to begin).
inline std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t n) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (std::size_t i = 0; i < n; ++i) crc = detail::kCrc32cTable[(crc ^ p[i]) & 0xffu] ^ (crc >> 8);
  return ~crc;
}

}  // namespace wisp
