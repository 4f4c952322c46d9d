#include "services/bench/kernel_bench.hpp"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "model/synth/random_weights.hpp"
#include "services/bench/crew.hpp"
#include "services/bench/roofs.hpp"
#include "services/compute/int8_buffer.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::bench {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::WeightView;

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096, kPlane = 64, kRoofStep = 512;
constexpr std::size_t kAhead = 8192;                            ///< bytes that the roof fetches ahead
constexpr std::size_t kLargestMatrix = std::size_t{256} << 20;  ///< room for one of those in kernel_cases

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What this thread has had of a CPU.
double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Where a matrix of a case and its scales lie.
struct Layout {
  std::size_t scales, bytes, stride;
  explicit Layout(const KernelCase& c)
      : scales(round_up(kernels::codes_bytes(c.format, c.rows, c.cols), kPlane)),
        bytes(scales + kernels::scales_bytes(c.format, c.rows, c.cols, c.group)),
        stride(round_up(bytes, kPage)) {}
};

/// Activations and results of a case.
struct Operands {
  std::vector<float> x, y;
  compute::Int8Buffer buffer;
  kernels::Int8Rows bytes;

  explicit Operands(const KernelCase& c)
      : x(std::size_t{c.tokens} * c.cols), y(std::size_t{c.tokens} * c.rows) {
    model::Random random(7);
    for (float& v : x) v = random.normal();
    if (!c.fast) return;
    buffer.resize(c.tokens, c.cols);
    bytes = buffer.rows(0, c.tokens, c.cols);
    kernels::best_kernels().quantise(c.format, x.data(), c.cols, c.tokens, c.cols, bytes);
  }
};

}  // namespace

void KernelBench::Unmap::operator()(std::uint8_t* p) const {
  ::munmap(p, bytes);
}

Result<KernelBench> KernelBench::create(const KernelBenchOptions& options) {
  KernelBench b;
  b.options_ = options;
  b.capacity_ = round_up(options.ring_bytes, kHugePage) + kLargestMatrix;
  const std::size_t bytes = b.capacity_ + kHugePage + kAhead;
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return exhausted("no memory for " + std::to_string(bytes >> 20) + " MiB of weights; --ring takes less");
  b.mapping_ = {static_cast<std::uint8_t*>(p), Unmap{bytes}};
  b.ring_ = b.mapping_.get() + (kHugePage - reinterpret_cast<std::uintptr_t>(p) % kHugePage) % kHugePage;
  b.huge_pages_ = ::madvise(b.ring_, b.capacity_, MADV_HUGEPAGE) == 0;
  return b;
}

void KernelBench::fill(const KernelCase& c) {
  if (filled_.rows == c.rows && filled_.cols == c.cols && filled_.format == c.format &&
      filled_.group == c.group)
    return;
  filled_ = c;
  const Layout at(c);
  WISP_CHECK(at.stride <= kLargestMatrix);
  const model::RandomMatrix m{c.format,        c.rows, c.cols,
                              c.group,         0.0f,   1.0f / std::sqrt(static_cast<float>(c.cols)),
                              model::Random(1)};
  m.tiles(ring_, ring_ + at.scales);
  for (std::size_t k = 1; k * at.stride < options_.ring_bytes; ++k)
    std::memcpy(ring_ + k * at.stride, ring_, at.bytes);
}

Result<KernelFigures> KernelBench::measure(const KernelCase& c) {
  WISP_TRY(check_threads(c.threads));
  fill(c);
  const Layout at(c);
  const kernels::Kernels& k = kernels::best_kernels();
  const Roofs& roofs = machine_roofs();
  Operands operands(c);
  KernelFigures out{c, {}, at.bytes, (options_.ring_bytes + at.stride - 1) / at.stride};

  const std::uint32_t tiles = kernels::tiles_of(c.rows);
  const std::size_t share = at.bytes / c.threads / kRoofStep * kRoofStep;
  const auto multiply = [&](std::uint64_t matrix, std::uint32_t thread) {
    const std::uint8_t* p = ring_ + matrix % out.matrices * at.stride;
    const WeightView w{c.format, c.rows, c.cols, c.group, p, p + at.scales, nullptr};
    const std::uint32_t begin = tiles * thread / c.threads, end = tiles * (thread + 1) / c.threads;
    if (c.fast)
      k.linear_int8(w, operands.bytes, c.tokens, operands.y.data(), c.rows, begin, end);
    else
      k.linear(w, operands.x.data(), c.cols, c.tokens, operands.y.data(), c.rows, begin, end);
  };
  const auto macs = c.fast ? roofs.int8_macs : roofs.f32_macs;
  std::uint64_t count = out.matrices, steps = 1u << 16;  // written by thread 0 while the others wait
  std::uint64_t roof_macs = 0;
  std::vector<double> shares(c.threads);

  WISP_TRY(run_pinned(c.threads, [&](std::uint32_t thread, SpinBarrier& barrier) {
    std::uint64_t sum = 0, matrix = 0;
    // Seconds that `work` takes on all threads.
    const auto timed = [&](const auto& work) {
      barrier.meet();
      const auto start = Clock::now();
      work();
      barrier.meet();
      return seconds_since(start);
    };
    const auto multiply_all = [&](std::uint64_t n) {
      return timed([&] {
        for (std::uint64_t i = 0; i < n; ++i) {
          multiply(matrix++, thread);
          barrier.meet();
        }
      });
    };
    const auto loop = [&] {
      return timed([&] {
        const std::uint64_t n = macs(steps);
        if (thread == 0) roof_macs = n;
      });
    };
    if (!c.streams()) {
      multiply_all(1);
      const double one = multiply_all(1), trial = loop();
      barrier.meet();
      if (thread == 0) {
        count = static_cast<std::uint64_t>(std::max(1.0, options_.half_seconds / one));
        steps = static_cast<std::uint64_t>(static_cast<double>(steps) *
                                           std::max(1.0, options_.half_seconds / trial));
      }
    }
    barrier.meet();
    const auto begin = Clock::now();
    const double cpu_before = cpu_seconds();
    for (std::uint32_t pair = 0; pair < options_.pairs; ++pair) {
      double roof = 0.0;
      if (c.streams()) {
        roof = timed([&] {
          for (std::uint64_t i = 0; i < out.matrices; ++i) {
            sum += roofs.read_sum(ring_ + i * at.stride + thread * share, share, kAhead);
            barrier.meet();
          }
        });
        matrix = 0;
      } else {
        roof = loop();
      }
      const double kernel = multiply_all(count);
      if (thread != 0) continue;
      const double n = static_cast<double>(count);
      if (c.streams()) {
        out.pairs.roof.push_back(static_cast<double>(share * c.threads) * n / roof * 1e-9);
        out.pairs.kernel.push_back(static_cast<double>(at.bytes) * n / kernel * 1e-9);
      } else {
        out.pairs.roof.push_back(static_cast<double>(roof_macs * c.threads) / roof * 1e-9);
        out.pairs.kernel.push_back(static_cast<double>(c.tokens) * c.rows * c.cols * n / kernel * 1e-9);
      }
    }
    shares[thread] = (cpu_seconds() - cpu_before) / seconds_since(begin);
    // Nothing of the sums is dropped.
    if (sum == 1) operands.y[0] = 1.0f;
  }));
  out.cpu_share = *std::min_element(shares.begin(), shares.end());
  return out;
}

}  // namespace wisp::bench
