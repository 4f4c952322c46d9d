#include "services/cli/bench.hpp"

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "services/bench/crew.hpp"
#include "services/bench/kernel_bench.hpp"
#include "services/bench/roofs.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::cli {
namespace {

using bench::KernelBench;
using bench::KernelCase;
using bench::KernelFigures;
using bench::Quartiles;

/// A thread that had less of its CPU was disturbed, and its figures say little.
constexpr double kAlone = 0.98;

struct KernelFlags {
  bench::KernelBenchOptions options;
  std::string filter;
  std::vector<std::uint32_t> threads;  ///< empty: 1, and 2 where there are two CPUs
  std::uint64_t ring_mib = 512;
  bool quick = false, json = false;
};

/// The rest of the first line of a file that begins with `key`; empty where there is none.
std::string line_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key))
      return line.substr(std::min(line.size(), line.find_first_not_of(" \t:", key.size())));
  return {};
}

void print_text(const KernelFigures& f) {
  const Quartiles kernel = bench::quartiles_of(f.pairs.kernel), roof = bench::quartiles_of(f.pairs.roof),
                  ratio = f.pairs.ratio();
  std::printf("%-44s %8.2f %8.2f %-6s  %.3f  (%.3f to %.3f)", f.what.name().c_str(), kernel.median,
              roof.median, f.what.streams() ? "GB/s" : "GMAC/s", ratio.median, ratio.low, ratio.high);
  if (f.cpu_share < kAlone) std::printf("  disturbed: %.0f %% of a CPU", 100.0 * f.cpu_share);
  std::printf("\n");
}

void print_json(const KernelFigures& f) {
  const auto object = [](const Quartiles& q) {
    return nlohmann::ordered_json{{"low", q.low}, {"median", q.median}, {"high", q.high}};
  };
  std::printf("%s\n", nlohmann::ordered_json{{"case", f.what.name()},
                                             {"unit", f.what.streams() ? "GB/s" : "GMAC/s"},
                                             {"kernel", object(bench::quartiles_of(f.pairs.kernel))},
                                             {"roof", object(bench::quartiles_of(f.pairs.roof))},
                                             {"ratio", object(f.pairs.ratio())},
                                             {"pairs", f.pairs.kernel.size()},
                                             {"cpu_share", f.cpu_share},
                                             {"matrix_bytes", f.matrix_bytes},
                                             {"matrices", f.matrices}}
                          .dump()
                          .c_str());
}

void print_head(const KernelFlags& f, const KernelBench& b) {
  const std::string cpu = line_of("/proc/cpuinfo", "model name"), load = line_of("/proc/loadavg", "");
  const auto isa = std::string(kernels::name_of(kernels::best_kernels().isa));
  if (f.json) {
    std::printf("%s\n", nlohmann::ordered_json{{"cpu", cpu},
                                               {"kernels", isa},
                                               {"roofs", bench::machine_roofs().isa},
                                               {"huge_pages", b.huge_pages()},
                                               {"load", load},
                                               {"ring_mib", f.ring_mib}}
                            .dump()
                            .c_str());
    return;
  }
  std::printf("%s; kernels: %s; roofs: %s; weights: %llu MiB%s; load before: %s\n", cpu.c_str(), isa.c_str(),
              bench::machine_roofs().isa, static_cast<unsigned long long>(f.ring_mib),
              b.huge_pages() ? " in huge pages" : "", load.c_str());
  std::printf("%-44s %8s %8s %-6s  %s\n", "", "kernel", "roof", "", "ratio of a pair, and its quartiles");
}

Result<int> run(KernelFlags& f) {
  if (f.quick) {
    f.options.pairs = 3;
    f.ring_mib = std::min<std::uint64_t>(f.ring_mib, 256);
    f.options.half_seconds = 0.02;
  }
  f.options.ring_bytes = f.ring_mib << 20;
  if (f.threads.empty()) {
    WISP_ASSIGN(const std::vector<int> cpus, bench::usable_cpus());
    f.threads = cpus.size() < 2 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{1, 2};
  }
  // Before the first case, not after an hour of them.
  for (const std::uint32_t threads : f.threads) WISP_TRY(bench::check_threads(threads));
  WISP_ASSIGN(const std::vector<KernelCase> cases, bench::kernel_cases(f.filter, f.threads));
  WISP_ASSIGN(KernelBench b, KernelBench::create(f.options));
  print_head(f, b);
  for (const KernelCase& c : cases) {
    WISP_ASSIGN(const KernelFigures figures, b.measure(c));
    if (f.json)
      print_json(figures);
    else
      print_text(figures);
    std::fflush(stdout);
  }
  if (!f.json) std::printf("load after: %s\n", line_of("/proc/loadavg", "").c_str());
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* group = app.add_subcommand("bench", "Measure this machine and what WISP makes of it");
  group->require_subcommand(1);
  add_bench_stream(*group, exit_code);
  add_bench_decode(*group, exit_code);
  add_bench_prefill(*group, exit_code);
  CLI::App* sub = group->add_subcommand("kernels", "Each kernel beside the machine's own roof, in turns");
  const auto f = std::make_shared<KernelFlags>();
  sub->add_option("--filter", f->filter,
                  "Only cases whose name has a match of this regular expression, such as gemv/int4-32/fast");
  sub->add_option("--threads", f->threads, "How many threads, each with a CPU of its own")
      ->delimiter(',')
      ->default_str("1,2 (1 where there is one CPU)");
  sub->add_option("--pairs", f->options.pairs, "Turns of roof and kernel")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_option("--ring", f->ring_mib, "MiB of weights that are walked through; above all caches")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  sub->add_flag("--quick", f->quick, "3 pairs, 256 MiB, shorter turns: for a first look");
  sub->add_flag("--json", f->json, "One JSON object a line: the machine, then a case each");
  sub->footer(
      "gemv: GB/s of weights, scales included, beside a sum of the same bytes. gemm: GMAC/s beside "
      "multiply-adds\n"
      "in registers. Nothing else should run on the CPUs meanwhile.");
  sub->callback([f, &exit_code] {
    auto code = run(*f);
    if (!code.ok()) std::fprintf(stderr, "wisp bench kernels: %s\n", code.error().text.c_str());
    exit_code = code.ok() ? *code : 1;
  });
}

}  // namespace wisp::cli
