#include "cpu/neon/int8_tiles.hpp"
#include "cpu/neon/neon.hpp"

namespace wisp::kernels::neon {
namespace {

/// SDOT adds the four products of each dword.
struct DotProducts {
  static constexpr std::uint32_t kTokens = 4;
  template <bool Narrow>
  struct Sum {
    int32x4_t rows = vdupq_n_s32(0);
    void add(int8x16_t w, int8x16_t x) { rows = vdotq_s32(rows, w, x); }
    int32x4_t whole() const { return rows; }
  };
};

}  // namespace

void linear_int8_dot(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y,
                     std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  linear_by<DotProducts>(w, x, tokens, y, y_stride, tile_begin, tile_end);
}

}  // namespace wisp::kernels::neon
