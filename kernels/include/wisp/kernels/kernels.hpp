#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "wisp/kernels/functions.hpp"
#include "wisp/kernels/int8_rows.hpp"
#include "wisp/kernels/kv_format.hpp"
#include "wisp/kernels/rope.hpp"
#include "wisp/kernels/route.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Instruction sets a table of kernels is written for. All give the same bits (kernels/CANON.md).
enum class Isa : std::uint8_t { kRef, kAvx2, kAvx512, kAvx512Vnni, kNeon, kNeonDot };

/// Every op for one instruction set. Plain functions; none allocates, none throws.
/// All sums follow kernels/CANON.md, so that a row's bits depend neither on the other rows nor on the table.
struct Kernels {
  Isa isa;

  /// y[t][o] = sum_k w[o][k] x[t][k] for rows o in tiles [tile_begin, tile_end) and tokens t in [0, tokens).
  /// x: [tokens, x_stride] f32, y: [tokens, y_stride] f32. Order: "products" of CANON.md.
  void (*linear)(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                 std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end);

  /// Activations x [rows, x_stride] of `cols` columns as bytes for weights of format `f` (takes_int8). A
  /// group with a number that is not finite gets the scale NaN.
  void (*quantise)(WeightFormat f, const float* x, std::size_t x_stride, std::uint32_t rows,
                   std::uint32_t cols, const Int8Rows& out);
  /// As `linear`, in the order of the `fast` profile; x comes from `quantise` for w's format.
  void (*linear_int8)(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y,
                      std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end);

  /// y = weight * (x * rsqrt(mean(x^2) + eps)), n elements; the sum of squares is a "reduction" of CANON.md.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::uint32_t n, float* y);

  /// scores[i][p] = fl(scale * (q_i . k_p)) for queries i in [0, n) and all positions p of `keys`, each page
  /// [width][16 positions]. q: [n, q_stride] f32, scores: [n, stride].
  void (*attention_scores)(const KvRows& keys, const float* q, std::size_t q_stride, std::uint32_t n,
                           float scale, float* scores, std::size_t stride);

  /// Softmax of n numbers in place, by the true maximum; the sum is a "reduction" of CANON.md, the
  /// quotient is e_i / sum.
  void (*softmax)(float* x, std::uint32_t n);

  /// out[i][d] = sum_p probs[i][p] * v_p[d] for queries i in [0, n) and positions p in [0, counts[i]), no
  /// more than `values` has; each page [16 positions][width]. Order: "products" of CANON.md with k = p.
  /// probs: [n, stride], out: [n, out_stride].
  void (*attention_values)(const KvRows& values, const float* probs, std::size_t stride,
                           const std::uint32_t* counts, std::uint32_t n, float* out, std::size_t out_stride);

  /// gate[i] = silu(gate[i]) * up[i].
  void (*silu_mul)(float* gate, const float* up, std::size_t n);

  /// acc[i] = fl(w * y[i]) where `first`, else fma(w, y[i], acc[i]).
  void (*accumulate)(float w, const float* y, float* acc, std::size_t n, bool first);

  /// x[i] = fl(x[i] + y[i]).
  void (*add)(float* x, const float* y, std::size_t n);
};

/// The plain loops: the oracle of every other table.
const Kernels& ref_kernels();
/// Every table that this build has and this CPU can run, `ref` first, the best last.
std::span<const Kernels* const> all_kernels();
/// The last of all_kernels, or the one whose name `WISP_ISA` has.
const Kernels& best_kernels();
/// What is wrong with `WISP_ISA`, with the names that are right; empty where it is one of them or not set.
/// Programs ask before they compute: best_kernels() itself passes over a name that it does not know.
std::string isa_refusal();
std::string_view name_of(Isa isa);

}  // namespace wisp::kernels
