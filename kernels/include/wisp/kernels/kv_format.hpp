#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace wisp::kernels {

/// One KV page holds this many consecutive positions.
inline constexpr std::uint32_t kPageTokens = 16;

/// How the numbers of a KV page are stored. The value stands in the header of region `kv`: only append.
enum class KvFormat : std::uint32_t {
  kF32 = 0,   ///< as computed
  kBf16 = 1,  ///< rounded once when a row is written; attention reads rounded rows alone, a chunk's own too
};

constexpr std::string_view name_of(KvFormat f) {
  return f == KvFormat::kBf16 ? "bf16" : "f32";
}
/// Bytes of one number.
constexpr std::uint32_t kv_bytes(KvFormat f) {
  return f == KvFormat::kBf16 ? 2 : 4;
}

/// What the rows of one sequence keep in one layer and KV head: positions [0, count) in pages of `format`,
/// those of a page together at pages[p / 16], `width` numbers each. Does not own its memory.
struct KvRows {
  KvFormat format = KvFormat::kF32;
  const std::byte* const* pages = nullptr;
  std::uint32_t count = 0;
  std::uint32_t width = 0;
};

/// Writes x [n] as numbers 0, stride, 2 stride, .. from `to`, rounded once.
void store_kv(KvFormat f, std::byte* to, std::size_t stride, const float* x, std::size_t n);

/// y [n] = the n numbers from `from`, widened exactly.
void load_kv(KvFormat f, const std::byte* from, std::size_t n, float* y);

/// y [16][entries] = a page's [entries][16], widened exactly.
void turn_kv_page(KvFormat f, const std::byte* page, std::uint32_t entries, float* y);

}  // namespace wisp::kernels
