#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "wisp/kernels/int8_rows.hpp"
#include "wisp/kernels/kv_format.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::kernels {

/// Instruction sets a table of kernels is written for. All give the same bits (kernels/CANON.md).
enum class Isa : std::uint8_t { kRef, kAvx2, kAvx512, kAvx512Vnni };

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
std::string_view name_of(Isa isa);

// --- small canonical functions, one definition for every table (no libm, no contraction) ---

/// e^x by range reduction and a polynomial of its own; the same bits on every CPU. +-inf and NaN as in IEEE.
float canonical_exp(float x);
/// 1 / (1 + e^-x), by canonical_exp.
float canonical_sigmoid(float x);
/// x / (1 + e^-x), by canonical_exp.
float canonical_silu(float x);
/// The canonical reduction: 16 interleaved lanes (i mod 16), then the tree +8, +4, +2, +1.
float canonical_sum(const float* x, std::size_t n);

/// x = weight * ((x - mean) * rsqrt(variance + eps)) + bias, n elements, in place; both sums are "reductions"
/// of CANON.md.
void layer_norm(float* x, const float* weight, const float* bias, float eps, std::uint32_t n);

/// gate[i] = (u + 1) g sigmoid(alpha g) with g = min(gate[i], limit), u = up[i] clamped to +-limit.
void clamped_glu(float* gate, const float* up, std::size_t n, float limit, float alpha);

/// Reads row r of a matrix in tile layout into y [cols]: plain numbers exactly, coded ones as fl(c d), which
/// rounds for kFp8 alone. Used by the embedding.
void gather_row(const WeightView& w, std::uint32_t row, float* y);

/// y [cols] = the inputs x [cols] in the order in which the columns of a matrix lie. A damaged order gives
/// wrong numbers, as damaged weights do, and reads nothing else.
inline void in_order(const std::uint32_t* order, std::uint32_t cols, const float* x, float* y) {
  for (std::uint32_t k = 0; k < cols; ++k) y[k] = x[order[k] < cols ? order[k] : 0];
}

inline constexpr std::uint32_t kMaxRouteGroups = 256;

enum class RouteKind : std::uint8_t {
  kSoftmaxTopK,  ///< softmax over all experts, top-k: R1 renormalised, R2 not
  kSigmoidTopK,  ///< R4
  kTopKSoftmax,  ///< R3: softmax over the chosen logits
};

/// How a row's experts are chosen and weighed (spec 2.7).
struct RouteRule {
  RouteKind kind = RouteKind::kSoftmaxTopK;
  std::uint32_t experts = 0;
  std::uint32_t top_k = 0;
  bool renormalise = true;
  // R4 alone
  std::uint32_t groups =
      1;  ///< at most kMaxRouteGroups, of equal size; a group is judged by the sum of its two best
  std::uint32_t kept_groups = 1;  ///< groups that may be chosen from
  float scale = 1.0f;             ///< of the weights
};
/// logits [experts] -> ids and weights [top_k], in rank order: descending by what is chosen by, id ascending
/// on ties. `selection` [experts]: R4 chooses by score + selection and weighs by the score; ignored
/// elsewhere. `scratch`: [2 * experts].
void route(const RouteRule& rule, const float* logits, const float* selection, float* scratch,
           std::uint32_t* ids, float* weights, const Kernels& k);

/// Cosine and sine tables for rope: [positions, width/2] each, computed in double and rounded once.
struct RopeTable {
  std::uint32_t width = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};
/// Rotates the first `width` entries of x [head_dim] for row `pos` of the table, halves or interleaved pairs:
/// y_a = fl(fl(x_a c) - fl(x_b s)), y_b = fl(fl(x_b c) + fl(x_a s)).
void apply_rope(float* x, const RopeTable& table, std::uint32_t pos, bool interleaved);

}  // namespace wisp::kernels
