// Matrix times one row: WISP's kernels against ggml's best type of the same bits, in turns (A B A B ..) over
// weights of 512 MiB a side, so that every matrix comes from memory. Not part of the build: ggml comes from
// PyPI's source package of llama-cpp-python (vendor/llama.cpp), built outside of the repository:
//
//   L=.../vendor/llama.cpp; cmake -B $L/build -S $L -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
//   cmake --build $L/build --target ggml
//   R=build/release; g++ -std=c++20 -O2 -o ggml_rival tests/bench/ggml_rival.cpp -I. -Icommon
//   -Ikernels/include
//     -I$L/ggml/include $R/services/bench/libwisp_bench.a $R/common/model/libwisp_model.a
//     $R/kernels/libwisp_kernels.a -lxxhash -L$L/build/bin -lggml -lggml-cpu -lggml-base
//     -Wl,-rpath,$L/build/bin -pthread
//   ./ggml_rival [PAIRS [REGEX]]        # of the names that `wisp bench kernels` prints, such as
//   gemv/int4-32/fast
//
// Both sides bring the activations into bytes within the time. ggml's best is chosen among its types of about
// the same bits, each as it is and re-laid ("repack"), by a trial before the turns. The ratio is of times for
// the same matrix.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "model/synth/random_weights.hpp"
#include "services/bench/crew.hpp"
#include "services/bench/kernel_cases.hpp"
#include "services/bench/pairs.hpp"
#include "services/compute/int8_buffer.hpp"
#include "wisp/kernels/kernels.hpp"

namespace {

using namespace wisp;
using kernels::WeightFormat;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kRing = std::size_t{512} << 20, kHugePage = std::size_t{2} << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// ggml's threads spin for a while after a graph; the other side waits until they sleep.
void settle() {
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
}

model::RandomMatrix matrix_of(const bench::KernelCase& c, WeightFormat format, std::uint32_t group) {
  return {format,          c.rows, c.cols, group, 0.0f, 1.0f / std::sqrt(static_cast<float>(c.cols)),
          model::Random(1)};
}

std::vector<float> activations(std::uint32_t n) {
  std::vector<float> x(n);
  model::Random random(7);
  for (float& v : x) v = random.normal();
  return x;
}

/// Anonymous memory in huge pages.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes + kHugePage) {
    p_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p_ == MAP_FAILED) std::abort();
    at_ = static_cast<std::uint8_t*>(p_) +
          (kHugePage - reinterpret_cast<std::uintptr_t>(p_) % kHugePage) % kHugePage;
    ::madvise(at_, bytes, MADV_HUGEPAGE);
  }
  ~Memory() { ::munmap(p_, bytes_); }
  std::uint8_t* at() const { return at_; }

 private:
  std::size_t bytes_;
  void* p_;
  std::uint8_t* at_;
};

class Ours {
 public:
  explicit Ours(const bench::KernelCase& c)
      : c_(c),
        scales_((kernels::codes_bytes(c.format, c.rows, c.cols) + 63) / 64 * 64),
        stride_((scales_ + kernels::scales_bytes(c.format, c.rows, c.cols, c.group) + 4095) / 4096 * 4096),
        matrices_((kRing + stride_ - 1) / stride_),
        memory_(matrices_ * stride_ + (1u << 20)),
        x_(activations(c.cols)),
        y_(c.rows) {
    matrix_of(c, c.format, c.group).tiles(memory_.at(), memory_.at() + scales_);
    for (std::size_t k = 1; k < matrices_; ++k)
      std::memcpy(memory_.at() + k * stride_, memory_.at(), stride_);
  }
  /// Seconds a matrix.
  double pass() {
    double seconds = 0.0;
    const kernels::Kernels& k = kernels::best_kernels();
    const auto status = bench::run_pinned(c_.threads, [&](std::uint32_t thread, bench::SpinBarrier& barrier) {
      const std::uint32_t tiles = kernels::tiles_of(c_.rows);
      const std::uint32_t begin = tiles * thread / c_.threads, end = tiles * (thread + 1) / c_.threads;
      compute::Int8Buffer buffer;
      buffer.resize(1, c_.cols);
      const kernels::Int8Rows bytes = buffer.rows(c_.cols);
      barrier.meet();
      const auto start = Clock::now();
      for (std::size_t i = 0; i < matrices_; ++i) {
        const std::uint8_t* p = memory_.at() + i * stride_;
        const kernels::WeightView w{c_.format, c_.rows, c_.cols, c_.group, p, p + scales_, nullptr};
        if (c_.fast) {
          k.quantise(c_.format, x_.data(), c_.cols, 1, c_.cols, bytes);  // each thread for itself
          k.linear_int8(w, bytes, 1, y_.data(), c_.rows, begin, end);
        } else {
          k.linear(w, x_.data(), c_.cols, 1, y_.data(), c_.rows, begin, end);
        }
        barrier.meet();
      }
      if (thread == 0) seconds = seconds_since(start);
    });
    if (!status.ok()) std::exit((std::fprintf(stderr, "%s\n", status.error().text.c_str()), 1));
    return seconds / static_cast<double>(matrices_);
  }
  std::size_t bytes() const {
    return kernels::codes_bytes(c_.format, c_.rows, c_.cols) +
           kernels::scales_bytes(c_.format, c_.rows, c_.cols, c_.group);
  }
  const std::vector<float>& y() const { return y_; }

 private:
  bench::KernelCase c_;
  std::size_t scales_, stride_, matrices_;
  Memory memory_;
  std::vector<float> x_, y_;
};

/// The buffer type that re-lays weights, or null.
ggml_backend_buffer_type_t repack() {
  ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  auto* extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
      ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts"));
  if (extra == nullptr) return nullptr;
  for (ggml_backend_buffer_type_t* b = extra(dev); b != nullptr && *b != nullptr; ++b)
    if (std::strcmp(ggml_backend_buft_name(*b), "CPU_REPACK") == 0) return *b;
  return nullptr;
}

class Theirs {
 public:
  /// Null where ggml cannot multiply this type in this buffer.
  static std::unique_ptr<Theirs> create(const bench::KernelCase& c, ggml_type type,
                                        ggml_backend_buffer_type_t buft) {
    if (c.cols % ggml_blck_size(type) != 0) return nullptr;
    auto t = std::unique_ptr<Theirs>(new Theirs);
    t->bytes_ = ggml_row_size(type, c.cols) * c.rows;
    t->matrices_ = (kRing + t->bytes_ - 1) / t->bytes_;
    t->backend_ = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(t->backend_, static_cast<int>(c.threads));
    const std::size_t n = t->matrices_;
    t->weights_ = ggml_init({ggml_tensor_overhead() * (n + 1), nullptr, true});
    t->work_ = ggml_init(
        {ggml_tensor_overhead() * (2 * n + 2) + ggml_graph_overhead_custom(2 * n, false), nullptr, true});
    t->graph_ = ggml_new_graph_custom(t->work_, 2 * n, false);
    ggml_tensor* x = ggml_new_tensor_2d(t->work_, GGML_TYPE_F32, c.cols, 1);
    std::vector<ggml_tensor*> w(n);
    for (std::size_t i = 0; i < n; ++i) {
      w[i] = ggml_new_tensor_2d(t->weights_, type, c.cols, c.rows);
      t->y_ = ggml_mul_mat(t->work_, w[i], x);
      ggml_build_forward_expand(t->graph_, t->y_);
    }
    t->buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(t->weights_, buft);
    t->work_buffer_ = ggml_backend_alloc_ctx_tensors(t->work_, t->backend_);
    if (t->buffer_ == nullptr || t->work_buffer_ == nullptr || !ggml_backend_supports_op(t->backend_, t->y_))
      return nullptr;
    ::madvise(ggml_backend_buffer_get_base(t->buffer_), ggml_backend_buffer_get_size(t->buffer_),
              MADV_HUGEPAGE);

    const model::RandomMatrix m = matrix_of(c, WeightFormat::kF32, 0);
    std::vector<float> plain(std::size_t{c.rows} * c.cols);
    for (std::uint32_t r = 0; r < c.rows; ++r)
      m.codes(r, {reinterpret_cast<std::uint8_t*>(plain.data() + std::size_t{r} * c.cols),
                  std::size_t{c.cols} * 4});
    std::vector<std::uint8_t> rounded(t->bytes_);
    ggml_quantize_chunk(type, plain.data(), rounded.data(), 0, c.rows, c.cols, nullptr);
    for (ggml_tensor* one : w) ggml_backend_tensor_set(one, rounded.data(), 0, t->bytes_);
    const std::vector<float> in = activations(c.cols);
    ggml_backend_tensor_set(x, in.data(), 0, in.size() * 4);
    return t;
  }
  ~Theirs() {
    ggml_backend_buffer_free(buffer_);
    ggml_backend_buffer_free(work_buffer_);
    ggml_free(weights_);
    ggml_free(work_);
    ggml_backend_free(backend_);
  }
  double pass() {
    const auto start = Clock::now();
    if (ggml_backend_graph_compute(backend_, graph_) != GGML_STATUS_SUCCESS) std::abort();
    return seconds_since(start) / static_cast<double>(matrices_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  Theirs() = default;
  std::size_t bytes_ = 0, matrices_ = 0;
  ggml_backend_t backend_ = nullptr;
  ggml_context *weights_ = nullptr, *work_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* y_ = nullptr;
  ggml_backend_buffer_t buffer_ = nullptr, work_buffer_ = nullptr;
};

std::vector<ggml_type> types_of(const bench::KernelCase& c) {
  if (c.format == WeightFormat::kInt4 && c.fast) return {GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL, GGML_TYPE_Q4_K};
  if (c.format == WeightFormat::kInt8 && c.fast) return {GGML_TYPE_Q8_0};
  if (c.format == WeightFormat::kMxfp4 && c.fast) return {GGML_TYPE_MXFP4};
  if (c.format == WeightFormat::kBf16) return {GGML_TYPE_BF16};
  return {};
}

void compare(const bench::KernelCase& c, int pairs) {
  std::unique_ptr<Theirs> best;
  std::string best_name;
  double best_time = 0.0;
  for (const ggml_type type : types_of(c)) {
    for (ggml_backend_buffer_type_t buft : {ggml_backend_cpu_buffer_type(), repack()}) {
      if (buft == nullptr) continue;
      auto one = Theirs::create(c, type, buft);
      if (!one) continue;
      one->pass();
      const double time = bench::quartiles_of({one->pass(), one->pass(), one->pass()}).median;
      if (best && time >= best_time) continue;
      best = std::move(one);
      best_time = time;
      best_name = std::string(ggml_type_name(type)) + (buft == repack() ? " repack" : "");
    }
  }
  if (!best) return;
  Ours ours(c);
  ours.pass();
  bench::Pairs times;  // ratio(): theirs / ours, so that more is faster
  for (int i = 0; i < pairs; ++i) {
    settle();
    times.roof.push_back(ours.pass());
    times.kernel.push_back(best->pass());
  }
  const auto q = times.ratio();
  const double us = bench::quartiles_of(times.roof).median, them = bench::quartiles_of(times.kernel).median;
  std::printf("%-34s %8.2f GB/s %9.1f us   %-14s %8.2f GB/s %9.1f us   %.3f  (%.3f to %.3f)\n",
              c.name().c_str(), static_cast<double>(ours.bytes()) / us * 1e-9, us * 1e6, best_name.c_str(),
              static_cast<double>(best->bytes()) / them * 1e-9, them * 1e6, q.median, q.low, q.high);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);  // a line for each matrix that is re-laid
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 7;
  auto cases = bench::kernel_cases(argc > 2 ? argv[2] : "gemv/(int4-32|int8|mxfp4)/fast|gemv/bf16", {1, 2});
  if (!cases.ok()) return std::fprintf(stderr, "%s\n", cases.error().text.c_str()), 1;
  std::printf("kernels: %s; ggml %s (%s)\n%-34s %-29s %-43s %s\n",
              std::string(name_of(kernels::best_kernels().isa)).c_str(), ggml_version(), ggml_commit(), "",
              "wisp", "ggml's best", "speed of wisp / ggml, and its quartiles");
  for (const auto& c : *cases)
    if (c.streams()) compare(c, pairs);
}
