#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::bench {

/// One product to be measured: weights [rows, cols] with `tokens` rows of activations.
struct KernelCase {
  kernels::WeightFormat format = kernels::WeightFormat::kInt4;
  std::uint32_t group = 0;  ///< columns per scale; 0 for plain numbers
  bool fast = false;        ///< activations in bytes
  std::uint32_t rows = 0, cols = 0, tokens = 1, threads = 1;

  /// Held against bytes read from memory, and not against multiply-adds in registers.
  bool streams() const { return tokens == 1; }
  /// "gemv/int4-32/fast/2048x7168/1t", "gemm/int4-32/exact/2048x7168/32rows/2t".
  std::string name() const;
};

/// The experts' matrices of DeepSeek V3, Mixtral 8x7B, Qwen3-30B and Qwen3-235B as seven formats have them,
/// with 1, 4, 8, 32 and 128 rows; those whose name contains a match of the regular expression `filter`, all
/// where it is empty. Errors: kInvalid (not an expression, nothing matches, a count of 0 threads).
Result<std::vector<KernelCase>> kernel_cases(const std::string& filter,
                                             const std::vector<std::uint32_t>& threads);

}  // namespace wisp::bench
