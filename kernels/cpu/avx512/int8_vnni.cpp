#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/int8_products.hpp"

namespace wisp::kernels::avx512 {
namespace {

struct VnniDot {
  static __m512i add(__m512i sum, __m512i u, __m512i x) { return _mm512_dpbusd_epi32(sum, u, x); }
  static __m512i add_small(__m512i sum, __m512i u, __m512i x) { return add(sum, u, x); }
};

}  // namespace

void linear_int8_vnni(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y,
                      std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  multiply<VnniDot>(w, x, tokens, y, y_stride, tile_begin, tile_end);
}

}  // namespace wisp::kernels::avx512
