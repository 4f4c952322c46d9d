#include "cpu/avx2/avx2.hpp"
#include "cpu/avx2/vector.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::avx2 {
namespace {

/// Widens the 16 rows of one dword of columns: column c of rows 0-7 to out[c][0], of rows 8-15 to out[c][1].
template <WeightFormat F>
inline void widen(const std::uint8_t* codes, __m256 (&out)[columns_per_dword(F)][2]) {
  const auto* rows = reinterpret_cast<const __m256i*>(codes);
  const __m256i low = _mm256_loadu_si256(rows);
  const __m256i high = _mm256_loadu_si256(rows + 1);
  if constexpr (F == WeightFormat::kF32) {
    out[0][0] = _mm256_castsi256_ps(low);
    out[0][1] = _mm256_castsi256_ps(high);
  } else if constexpr (F == WeightFormat::kBf16) {
    const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    out[0][0] = _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
    out[0][1] = _mm256_castsi256_ps(_mm256_slli_epi32(high, 16));
    out[1][0] = _mm256_castsi256_ps(_mm256_and_si256(low, odd));
    out[1][1] = _mm256_castsi256_ps(_mm256_and_si256(high, odd));
  } else {
    const __m256i even = _mm256_set1_epi32(0xffff);
    // The pack works within 128-bit halves; the permutation brings rows 0-15 back into order.
    const __m256i c0 = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(_mm256_and_si256(low, even), _mm256_and_si256(high, even)), 0xd8);
    const __m256i c1 = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16)), 0xd8);
    out[0][0] = _mm256_cvtph_ps(_mm256_castsi256_si128(c0));
    out[0][1] = _mm256_cvtph_ps(_mm256_extracti128_si256(c0, 1));
    out[1][0] = _mm256_cvtph_ps(_mm256_castsi256_si128(c1));
    out[1][1] = _mm256_cvtph_ps(_mm256_extracti128_si256(c1, 1));
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
  __m256 sum[Tiles][Tokens][2];
  for (auto& of_tile : sum) {
    for (auto& of_token : of_tile) of_token[0] = of_token[1] = _mm256_setzero_ps();
  }
  for (std::uint32_t k = 0; k < w.cols;) {
    const std::uint32_t begin = k;
    const std::uint32_t end = w.cols - begin < kBlockColumns ? w.cols : begin + kBlockColumns;
    __m256 a[Tiles][Tokens][2];
    for (auto& of_tile : a) {
      for (auto& of_token : of_tile) of_token[0] = of_token[1] = _mm256_setzero_ps();
    }
    const auto columns = [&](std::uint32_t live) __attribute__((always_inline)) {
      for (std::uint32_t i = 0; i < Tiles; ++i) {
        __m256 wide[kColumns][2];
        prefetch(codes, (Tiles + i) * tile_bytes);
        widen<F>(codes + i * tile_bytes, wide);
        for (std::uint32_t c = 0; c < live; ++c) {
          for (std::uint32_t t = 0; t < Tokens; ++t) {
            const __m256 xk = _mm256_broadcast_ss(x + t * x_stride + k + c);
            a[i][t][0] = _mm256_fmadd_ps(wide[c][0], xk, a[i][t][0]);
            a[i][t][1] = _mm256_fmadd_ps(wide[c][1], xk, a[i][t][1]);
          }
        }
      }
      codes += kDwordBytes;
      k += live;
    };
    while (k + kColumns <= end) columns(kColumns);
    if (k < end) columns(1);  // the last column of an odd number of them
    for (std::uint32_t i = 0; i < Tiles; ++i) {
      for (std::uint32_t t = 0; t < Tokens; ++t) {
        for (std::uint32_t h = 0; h < 2; ++h) {
          sum[i][t][h] = begin == 0 ? a[i][t][h] : _mm256_add_ps(sum[i][t][h], a[i][t][h]);
        }
      }
    }
  }
  for (std::uint32_t i = 0; i < Tiles; ++i) {
    for (std::uint32_t t = 0; t < Tokens; ++t) {
      store_rows(y + t * y_stride, (tile + i) * kTileRows, w.rows, sum[i][t][0], sum[i][t][1]);
    }
  }
}

template <WeightFormat F>
void linear_plain(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                  std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  std::uint32_t tile = tile_begin;
  if (tokens == 1) {
    for (; tile + 4 <= tile_end; tile += 4) tiles_of_tokens<F, 4, 1>(w, tile, x, x_stride, y, y_stride);
    for (; tile + 2 <= tile_end; tile += 2) tiles_of_tokens<F, 2, 1>(w, tile, x, x_stride, y, y_stride);
  } else if (tokens == 2) {
    for (; tile + 2 <= tile_end; tile += 2) tiles_of_tokens<F, 2, 2>(w, tile, x, x_stride, y, y_stride);
  }
  for (; tile < tile_end; ++tile) {
    for_passes(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
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

}  // namespace wisp::kernels::avx2
