#pragma once
#include <cstddef>
#include <cstdint>

#include "wisp/kernels/int8_rows.hpp"
#include "wisp/kernels/kv_format.hpp"
#include "wisp/kernels/weight.hpp"

/// AArch64's Advanced SIMD, which every such CPU has; the same bits as `ref`; contracts in
/// wisp/kernels/kernels.hpp. FPCR is as Linux hands it to a process: subnormals kept, NaN carried. What only
/// newer CPUs have lies in files of its own, compiled for it (int8_dot.cpp): keep what the files of this
/// folder instantiate in anonymous namespaces, so that the linker never picks one of those copies for an
/// older CPU.
namespace wisp::kernels::neon {

void linear(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
            std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end);
/// `linear` for the coded formats.
void linear_coded(const WeightView& w, const float* x, std::size_t x_stride, std::uint32_t tokens, float* y,
                  std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end);
void quantise(WeightFormat f, const float* x, std::size_t x_stride, std::uint32_t rows, std::uint32_t cols,
              const Int8Rows& out);
void linear_int8(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y, std::size_t y_stride,
                 std::uint32_t tile_begin, std::uint32_t tile_end);
/// `linear_int8` by the instructions for dot products of bytes (FEAT_DotProd).
void linear_int8_dot(const WeightView& w, const Int8Rows& x, std::uint32_t tokens, float* y,
                     std::size_t y_stride, std::uint32_t tile_begin, std::uint32_t tile_end);
void rms_norm(const float* x, const float* weight, float eps, std::uint32_t n, float* y);
void attention_scores(const KvRows& keys, const float* q, std::size_t q_stride, std::uint32_t n, float scale,
                      float* scores, std::size_t stride);
void softmax(float* x, std::uint32_t n);
void attention_values(const KvRows& values, const float* probs, std::size_t stride,
                      const std::uint32_t* counts, std::uint32_t n, float* out, std::size_t out_stride);
void silu_mul(float* gate, const float* up, std::size_t n);
void accumulate(float w, const float* y, float* acc, std::size_t n, bool first);
void add(float* x, const float* y, std::size_t n);

}  // namespace wisp::kernels::neon
