#include "cpu/neon/coded_formats.hpp"
#include "cpu/neon/neon.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::neon {
namespace {

constexpr std::size_t kDwordBytes = kTileRows * 4;

template <std::uint32_t Tokens>
struct Chains {
  Sixteen of[Tokens];
};

template <std::uint32_t Tokens>
inline void clear(Chains<Tokens>& chains) {
  for (Sixteen& c : chains.of) c = splat(0.0f);
}

/// Columns C, C + 1, .. of one dword, those below `live`, ascending.
template <class Format, std::uint32_t C, std::uint32_t Tokens>
inline __attribute__((always_inline)) void advance(const typename Format::Codes (&codes)[kVectors],
                                                   const Sixteen& zeros, const float* x, std::size_t x_stride,
                                                   std::uint32_t live, Chains<Tokens>& t) {
  if constexpr (C < columns_per_dword(Format::kFormat)) {
    if (C >= live) return;
    Sixteen wide;
    for (std::uint32_t v = 0; v < kVectors; ++v) wide.v[v] = Format::template column<C>(codes[v], zeros.v[v]);
    for (std::uint32_t i = 0; i < Tokens; ++i) fma(wide, x[i * x_stride + C], t.of[i]);
    advance<Format, C + 1, Tokens>(codes, zeros, x, x_stride, live, t);
  }
}

/// One dword of columns for the 16 rows of a tile.
template <class Format, std::uint32_t Tokens>
inline __attribute__((always_inline)) void dword(const std::uint8_t* codes, std::size_t tile_bytes,
                                                 const Sixteen& zeros, const float* x, std::size_t x_stride,
                                                 std::uint32_t live, Chains<Tokens>& t) {
  using Codes = typename Format::Codes;
  prefetch(codes, tile_bytes);
  const Codes four[kVectors] = {Codes(codes), Codes(codes + 16), Codes(codes + 32), Codes(codes + 48)};
  advance<Format, 0, Tokens>(four, zeros, x, x_stride, live, t);
}

/// a <- fma(t, d_w, a) with the scales at `scales`.
template <class Format, std::uint32_t Tokens>
inline void fold(const Chains<Tokens>& t, const std::uint8_t* scales, Chains<Tokens>& a) {
  const Sixteen d = Format::scales(scales);
  for (std::uint32_t i = 0; i < Tokens; ++i) fma(t.of[i], d, a.of[i]);
}

/// One tile for `Tokens` tokens. The inner chains of `Groups` groups of 32 columns run side by side, as they
/// do not depend on each other; they are folded in ascending order.
template <class Format, std::uint32_t Tokens, std::uint32_t Groups>
void tile_of_tokens(const WeightView& w, std::uint32_t tile, const float* x, std::size_t x_stride, float* y,
                    std::size_t y_stride) {
  constexpr std::uint32_t kSpan = Groups * kGroupColumns;
  constexpr std::uint32_t kColumns = columns_per_dword(Format::kFormat);
  constexpr std::size_t kGroupBytes = kGroupColumns / kColumns * kDwordBytes;
  constexpr std::size_t kScaleRow =
      traits_of(Format::kFormat).scale_rows * traits_of(Format::kFormat).scale_bytes;
  const std::size_t tile_bytes = dwords_of(w.format, w.cols) * kDwordBytes;
  const std::uint8_t* codes = w.codes + tile * tile_bytes;
  const std::uint8_t* scales = w.scales + tile * tile_scale_bytes(Format::kFormat, w.cols, w.group);
  const auto scales_of = [&](std::uint32_t k) { return scales + std::size_t{k / w.group} * kScaleRow; };
  Chains<Tokens> sum;
  clear(sum);
  for (std::uint32_t k = 0; k < w.cols;) {
    const std::uint32_t begin = k;
    const std::uint32_t end = w.cols - begin < kBlockColumns ? w.cols : begin + kBlockColumns;
    Chains<Tokens> a;
    clear(a);
    for (; k + kSpan <= end; k += kSpan) {
      Chains<Tokens> t[Groups];
      Sixteen zeros[Groups];
      for (std::uint32_t g = 0; g < Groups; ++g) {
        clear(t[g]);
        zeros[g] = Format::zeros(scales_of(k + g * kGroupColumns));
      }
      for (std::uint32_t c = 0; c < kGroupColumns; c += kColumns, codes += kDwordBytes) {
        for (std::uint32_t g = 0; g < Groups; ++g) {
          dword<Format>(codes + g * kGroupBytes, tile_bytes, zeros[g], x + k + g * kGroupColumns + c,
                        x_stride, kColumns, t[g]);
        }
      }
      codes += (Groups - 1) * kGroupBytes;
      for (std::uint32_t g = 0; g < Groups; ++g) fold<Format>(t[g], scales_of(k + g * kGroupColumns), a);
    }
    while (k < end) {
      const std::uint32_t group_begin = k;
      const std::uint32_t group_end = end - k < kGroupColumns ? end : k + kGroupColumns;
      const Sixteen zeros = Format::zeros(scales_of(group_begin));
      Chains<Tokens> t;
      clear(t);
      for (; k < group_end; codes += kDwordBytes) {
        const std::uint32_t live = group_end - k < kColumns ? group_end - k : kColumns;
        dword<Format>(codes, tile_bytes, zeros, x + k, x_stride, live, t);
        k += live;
      }
      fold<Format>(t, scales_of(group_begin), a);
    }
    for (std::uint32_t i = 0; i < Tokens; ++i) add_block(a.of[i], begin == 0, sum.of[i]);
  }
  for (std::uint32_t i = 0; i < Tokens; ++i)
    store_some(y + i * y_stride, tile * kTileRows, w.rows, sum.of[i]);
}

template <class Format>
void tiles_of_codes(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                    std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  for (std::uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    for_passes<4>(tokens, [&]<std::uint32_t N>(std::uint32_t t) {
      constexpr std::uint32_t kGroups = N == 1 ? 2 : 1;
      tile_of_tokens<Format, N, kGroups>(w, tile, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
    });
  }
}

}  // namespace

void linear_coded(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                  std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end) {
  const auto as = [&]<class Format>() {
    tiles_of_codes<Format>(w, x, x_stride, tokens, y, y_stride, tile_begin, tile_end);
  };
  switch (w.format) {
    case WeightFormat::kInt4:
      return as.operator()<Int4>();
    case WeightFormat::kInt4Zero:
      return as.operator()<Int4Zero>();
    case WeightFormat::kMxfp4:
      return as.operator()<Mxfp4>();
    case WeightFormat::kInt8:
      return as.operator()<Int8>();
    case WeightFormat::kFp8:
      return as.operator()<Fp8>();
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      break;
  }
}

}  // namespace wisp::kernels::neon
