#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "wisp/kernels/kernels.hpp"
#include "wisp/kernels/weight.hpp"

/// GB/s of `linear` on one thread, beside the read roof of the same buffer in the same run: compare the rows.
/// The weights exceed every private cache, but not the shared cache of a large server; WISP_ISA=ref times
/// `ref`.
namespace {

using namespace wisp::kernels;

constexpr std::size_t kBytes = std::size_t{384} << 20;
constexpr std::uint32_t kCols = 2048;

/// One buffer for all benchmarks: harmless bits in every format (bf16 0x3f3f = 0.75, f32 0.7471, codes 15 and
/// 3).
const std::vector<std::uint8_t>& buffer() {
  static const std::vector<std::uint8_t> bytes(kBytes, 0x3f);
  return bytes;
}

void report(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * static_cast<std::int64_t>(state.iterations()));
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(bytes) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

/// Reads the buffer as state.range(0) streams side by side; the roof is the best of them.
void read_roof(benchmark::State& state) {
  const std::uint8_t* bytes = buffer().data();
  const auto streams = static_cast<std::size_t>(state.range(0));
  const std::size_t stride = kBytes / streams;
  for (auto _ : state) {
    std::uint64_t sums[16] = {};
    for (std::size_t i = 0; i < stride; i += sizeof(sums)) {
      for (std::size_t s = 0; s < streams; ++s) {
        std::uint64_t words[16];
        std::memcpy(words, bytes + s * stride + i, sizeof(words));
        for (std::size_t l = 0; l < 16; ++l) sums[l] += words[l];
      }
    }
    benchmark::DoNotOptimize(sums);
  }
  report(state, kBytes);
}

/// Weights [rows, 2048] that fill the buffer, and inputs and outputs of `tokens` rows.
struct Product {
  WeightView w;
  std::vector<std::uint8_t> scales;
  std::vector<float> x, y;
  std::uint32_t tokens;

  Product(WeightFormat format, const benchmark::State& state)
      : tokens(static_cast<std::uint32_t>(state.range(0))) {
    w.format = format;
    w.cols = kCols;
    if (is_coded(format))
      w.group = format == WeightFormat::kMxfp4 || format == WeightFormat::kInt8 ? 32 : 128;
    w.rows = static_cast<std::uint32_t>(kBytes / codes_bytes(format, kTileRows, kCols)) * kTileRows;
    w.codes = buffer().data();
    scales.resize(scales_bytes(format, w.rows, w.cols, w.group), 0x3f);
    w.scales = scales.data();
    x.resize(std::size_t{tokens} * kCols, 0.5f);
    y.resize(std::size_t{tokens} * w.rows);
  }

  template <class Multiply>
  void measure(benchmark::State& state, const Multiply& multiply) {
    for (auto _ : state) {
      multiply();
      benchmark::DoNotOptimize(y.data());
      benchmark::ClobberMemory();
    }
    report(state, codes_bytes(w.format, w.rows, w.cols) + scales.size());
    state.counters["GFLOP/s"] =
        benchmark::Counter(2e-9 * tokens * w.rows * kCols, benchmark::Counter::kIsIterationInvariantRate);
    state.SetLabel(std::string(name_of(best_kernels().isa)));
  }
};

/// state.range(0) tokens.
void linear(benchmark::State& state, WeightFormat format) {
  Product p(format, state);
  p.measure(state, [&] {
    best_kernels().linear(p.w, p.x.data(), kCols, p.tokens, p.y.data(), p.w.rows, 0, tiles_of(p.w.rows));
  });
}

/// The same with activations in bytes; quantising them is part of it.
void linear_int8(benchmark::State& state, WeightFormat format) {
  Product p(format, state);
  std::vector<float> d(std::size_t{p.tokens} * kCols / 32);
  std::vector<std::int8_t> codes(p.x.size());
  std::vector<std::int32_t> offsets(d.size());
  const Int8Rows rows{kCols / 32, p.tokens, codes.data(), d.data(), offsets.data()};
  p.measure(state, [&] {
    best_kernels().quantise(format, p.x.data(), kCols, p.tokens, kCols, rows);
    best_kernels().linear_int8(p.w, rows, p.tokens, p.y.data(), p.w.rows, 0, tiles_of(p.w.rows));
  });
}

}  // namespace

BENCHMARK_CAPTURE(linear_int8, int4, WeightFormat::kInt4)
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_int8, int4_zero, WeightFormat::kInt4Zero)
    ->Arg(1)
    ->Arg(16)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_int8, mxfp4, WeightFormat::kMxfp4)->Arg(1)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_int8, int8, WeightFormat::kInt8)
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(read_roof)->Arg(1)->Arg(4)->Arg(8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, bf16, WeightFormat::kBf16)->Arg(1)->Arg(4)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, f16, WeightFormat::kF16)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, f32, WeightFormat::kF32)->Arg(1)->Arg(4)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, int8, WeightFormat::kInt8)->Arg(1)->Arg(4)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, fp8, WeightFormat::kFp8)->Arg(1)->Arg(4)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, mxfp4, WeightFormat::kMxfp4)
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, int4_zero, WeightFormat::kInt4Zero)
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, int4, WeightFormat::kInt4)
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Arg(16)
    ->Unit(benchmark::kMillisecond);
