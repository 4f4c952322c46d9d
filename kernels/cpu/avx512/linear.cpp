#include "cpu/avx512/avx512.hpp"
#include "cpu/avx512/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::avx512 {
namespace {

constexpr std::size_t kDwordBytes = kTileRows * 4;

/// Widens one dword of columns of the 16 rows: column c to out[c].
template <WeightFormat F>
inline void widen(const std::uint8_t* codes, __m512 (&out)[columns_per_dword(F)]) {
  const __m512i dwords = _mm512_loadu_si512(codes);
  if constexpr (F == WeightFormat::kF32) {
    out[0] = _mm512_castsi512_ps(dwords);
  } else if constexpr (F == WeightFormat::kBf16) {
    out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(dwords, 16));
    out[1] = _mm512_castsi512_ps(_mm512_and_si512(dwords, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  } else {
    out[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dwords));
    out[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(dwords, 16)));
  }
}

/// `Tiles` adjacent tiles times `Tokens` tokens. Each row of each token is one chain along k; it takes some
/// eight chains of vectors to hide the depth of the adder.
template <WeightFormat F, std::uint32_t Tiles, std::uint32_t Tokens>
void tiles_of_tokens(const WeightView& w, std::uint32_t tile, const float* x, std::size_t x_stride, float* y,
                     std::size_t y_stride) {
  constexpr std::uint32_t kColumns = columns_per_dword(F);
  const std::size_t tile_bytes = dwords_of(F, w.cols) * kDwordBytes;
  const std::uint8_t* tile_codes = w.codes + tile * tile_bytes;
  std::size_t at = 0;
  __m512 sum[Tiles][Tokens];
  for (auto& of_tile : sum)
    for (auto& s : of_tile) s = _mm512_setzero_ps();
  for (std::uint32_t k = 0; k < w.cols;) {
    const std::uint32_t begin = k;
    const std::uint32_t end = w.cols - begin < kBlockColumns ? w.cols : begin + kBlockColumns;
    __m512 a[Tiles][Tokens];
    for (auto& of_tile : a)
      for (auto& s : of_tile) s = _mm512_setzero_ps();
    const auto columns = [&](std::uint32_t live) __attribute__((always_inline)) {
      const std::size_t ahead = ahead_of<Tiles>(at, tile_bytes);
      __m512 wide[Tiles][kColumns];
      for (std::uint32_t i = 0; i < Tiles; ++i) {
        prefetch(tile_codes + i * tile_bytes + at, ahead);
        widen<F>(tile_codes + i * tile_bytes + at, wide[i]);
      }
      for (std::uint32_t c = 0; c < live; ++c) {
        for (std::uint32_t t = 0; t < Tokens; ++t) {
          const __m512 xk = _mm512_set1_ps(x[t * x_stride + k + c]);
          for (std::uint32_t i = 0; i < Tiles; ++i) a[i][t] = _mm512_fmadd_ps(wide[i][c], xk, a[i][t]);
        }
      }
      at += kDwordBytes;
      k += live;
    };
    while (k + kColumns <= end) columns(kColumns);
    if (k < end) columns(1);  // the last column of an odd number of them
    for (std::uint32_t i = 0; i < Tiles; ++i)
      for (std::uint32_t t = 0; t < Tokens; ++t)
        sum[i][t] = begin == 0 ? a[i][t] : _mm512_add_ps(sum[i][t], a[i][t]);
  }
  for (std::uint32_t i = 0; i < Tiles; ++i)
    for (std::uint32_t t = 0; t < Tokens; ++t)
      store_rows(y + t * y_stride, (tile + i) * kTileRows, w.rows, sum[i][t]);
}

template <WeightFormat F>
void linear_plain(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                  std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  std::uint32_t tile = tile_begin;
  if (tokens == 1)
    for (; tile + 8 <= tile_end; tile += 8) tiles_of_tokens<F, 8, 1>(w, tile, x, x_stride, y, y_stride);
  if (tokens <= 2)
    for (; tile + 4 <= tile_end; tile += 4)
      for_passes(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
        if constexpr (N <= 2)
          tiles_of_tokens<F, 4, N>(w, tile, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
      });
  for (; tile + 2 <= tile_end; tile += 2)
    for_passes(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
      tiles_of_tokens<F, 2, N>(w, tile, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
    });
  if (tile < tile_end)
    for_passes(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
      tiles_of_tokens<F, 1, N>(w, tile, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
    });
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

}  // namespace wisp::kernels::avx512
