#include "cpu/neon/neon.hpp"
#include "cpu/neon/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::neon {
namespace {

/// Widens the 16 rows of one dword of columns.
template <WeightFormat F>
inline void widen(const std::uint8_t* codes, Sixteen (&out)[columns_per_dword(F)]) {
  for (std::uint32_t v = 0; v < kVectors; ++v) {
    const uint32x4_t rows = vreinterpretq_u32_u8(vld1q_u8(codes + v * 16));
    if constexpr (F == WeightFormat::kF32) {
      out[0].v[v] = vreinterpretq_f32_u32(rows);
    } else if constexpr (F == WeightFormat::kBf16) {
      out[0].v[v] = vreinterpretq_f32_u32(vshlq_n_u32(rows, 16));
      out[1].v[v] = vreinterpretq_f32_u32(vandq_u32(rows, vdupq_n_u32(0xffff0000u)));
    } else {
      out[0].v[v] = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(rows)));
      out[1].v[v] = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(rows, 16)));
    }
  }
}

/// `Tiles` adjacent tiles times `Tokens` tokens. Each row of each token is one chain along k; it takes some
/// eight vectors of chains to hide the depth of the adder, hence several tiles where there are few tokens.
template <WeightFormat F, std::uint32_t Tiles, std::uint32_t Tokens>
void tiles_of_tokens(const WeightView& w, std::uint32_t tile, const float* x, std::size_t x_stride, float* y,
                     std::size_t y_stride) {
  constexpr std::uint32_t kColumns = columns_per_dword(F);
  constexpr std::size_t kDwordBytes = kTileRows * 4;
  const std::size_t tile_bytes = dwords_of(F, w.cols) * kDwordBytes;
  const std::uint8_t* codes = w.codes + tile * tile_bytes;
  Sixteen sum[Tiles][Tokens];
  for (auto& of_tile : sum)
    for (Sixteen& of_token : of_tile) of_token = splat(0.0f);
  for (std::uint32_t k = 0; k < w.cols;) {
    const std::uint32_t begin = k;
    const std::uint32_t end = w.cols - begin < kBlockColumns ? w.cols : begin + kBlockColumns;
    Sixteen a[Tiles][Tokens];
    for (auto& of_tile : a)
      for (Sixteen& of_token : of_tile) of_token = splat(0.0f);
    const auto columns = [&](std::uint32_t live) __attribute__((always_inline)) {
      for (std::uint32_t i = 0; i < Tiles; ++i) {
        Sixteen wide[kColumns];
        prefetch(codes, (Tiles + i) * tile_bytes);
        widen<F>(codes + i * tile_bytes, wide);
        for (std::uint32_t c = 0; c < live; ++c)
          for (std::uint32_t t = 0; t < Tokens; ++t) fma(wide[c], x[t * x_stride + k + c], a[i][t]);
      }
      codes += kDwordBytes;
      k += live;
    };
    while (k + kColumns <= end) columns(kColumns);
    if (k < end) columns(1);  // the last column of an odd number of them
    for (std::uint32_t i = 0; i < Tiles; ++i)
      for (std::uint32_t t = 0; t < Tokens; ++t) add_block(a[i][t], begin == 0, sum[i][t]);
  }
  for (std::uint32_t i = 0; i < Tiles; ++i)
    for (std::uint32_t t = 0; t < Tokens; ++t)
      store_some(y + t * y_stride, (tile + i) * kTileRows, w.rows, sum[i][t]);
}

template <WeightFormat F>
void linear_plain(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                  std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  std::uint32_t tile = tile_begin;
  if (tokens == 1) {
    for (; tile + 4 <= tile_end; tile += 4) tiles_of_tokens<F, 4, 1>(w, tile, x, x_stride, y, y_stride);
    for (; tile + 2 <= tile_end; tile += 2) tiles_of_tokens<F, 2, 1>(w, tile, x, x_stride, y, y_stride);
  }
  for (; tile < tile_end; ++tile) {
    for_passes<4>(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
      tiles_of_tokens<F, 1, N>(w, tile, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
    });
  }
}

}  // namespace

void linear(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
            std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  switch (w.format) {
    case WeightFormat::kF32:
      return linear_plain<WeightFormat::kF32>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
    case WeightFormat::kBf16:
      return linear_plain<WeightFormat::kBf16>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
    case WeightFormat::kF16:
      return linear_plain<WeightFormat::kF16>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
    case WeightFormat::kInt4:
    case WeightFormat::kInt4Zero:
    case WeightFormat::kMxfp4:
    case WeightFormat::kInt8:
    case WeightFormat::kFp8:
      return linear_coded(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
  }
}

}  // namespace wisp::kernels::neon
