#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "services/bench/kernel_cases.hpp"
#include "services/bench/pairs.hpp"

namespace wisp::bench {

struct KernelBenchOptions {
  std::uint32_t pairs = 7;
  std::uint64_t ring_bytes = std::uint64_t{512} << 20;  ///< of weights that are walked through: beyond caches
  double half_seconds = 0.05;  ///< about so long each half of a pair takes, where the ring does not decide
};

/// What a case gave. GB/s of weights (codes and scales) where it streams, else GMAC/s.
struct KernelFigures {
  KernelCase what;
  Pairs pairs;
  std::uint64_t matrix_bytes = 0;
  std::uint64_t matrices = 0;  ///< in the ring, each met once before one is met again
  double cpu_share = 0.0;  ///< of the time, what the thread that had least got of its CPU; near 1 if alone
};

/// Times the kernels that best_kernels() gives, and the machine's roof in turns with them: the sum of the
/// same bytes where they stream, else a loop of multiply-adds in registers. Threads are pinned, share each
/// matrix by rows of tiles and meet behind it, as in a forward pass. Activations are made ready before.
class KernelBench {
 public:
  /// Errors: kExhausted where there is no memory for the ring.
  static Result<KernelBench> create(const KernelBenchOptions& options);

  /// Errors: kInvalid (more threads than CPUs).
  Result<KernelFigures> measure(const KernelCase& c);

  /// Whether the memory lies in huge pages; without, figures are lower.
  bool huge_pages() const { return huge_pages_; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::uint8_t* p) const;
  };
  KernelBench() = default;
  /// Fills the ring with matrices of a case, side by side; they hold the same numbers.
  void fill(const KernelCase& c);

  KernelBenchOptions options_;
  std::unique_ptr<std::uint8_t, Unmap> mapping_{nullptr, Unmap{0}};
  std::uint8_t* ring_ = nullptr;  ///< in mapping_, aligned to 2 MiB
  std::size_t capacity_ = 0;
  bool huge_pages_ = false;
  KernelCase filled_;  ///< rows 0: none
};

}  // namespace wisp::bench
