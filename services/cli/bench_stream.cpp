#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "plan/run_plan.hpp"
#include "services/bench/stream_bench.hpp"
#include "services/cli/bench.hpp"
#include "services/cli/size_flag.hpp"

namespace wisp::cli {
namespace {

struct StreamFlags {
  bench::StreamOptions options;
  std::string size, bank, depth, turn;
  bool plain_buffers = false, json = false;
};

double percentile(std::vector<double> ms, double share) {
  if (ms.empty()) return 0.0;
  const auto at = std::min(ms.size() - 1, static_cast<std::size_t>(share * static_cast<double>(ms.size())));
  std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(at), ms.end());
  return ms[at];
}

Status run(StreamFlags& f) {
  bench::StreamOptions& o = f.options;
  for (const auto& [text, to] :
       {std::pair{&f.size, &o.size}, {&f.bank, &o.bank}, {&f.depth, &o.depth}, {&f.turn, &o.turn_bytes}})
    if (!text->empty()) {
      WISP_ASSIGN(*to, plan::parse_size(*text));
    }
  if (o.model.empty() == (o.size == 0)) return invalid("give a MODEL, or --size of an expert");
  o.registered = !f.plain_buffers;
  // stdout is for figures.
  spdlog::set_default_logger(spdlog::stderr_logger_st("bench"));
  spdlog::set_level(spdlog::level::warn);
  WISP_ASSIGN(const auto b, bench::StreamBench::create(o));
  WISP_ASSIGN(const bench::StreamFigures s, b->measure());
  const auto ours = bench::quartiles_of(s.rates.kernel), plain = bench::quartiles_of(s.rates.roof),
             ratio = s.rates.ratio();
  const double device = s.device_bytes && s.expert_bytes != 0
                            ? static_cast<double>(*s.device_bytes) / static_cast<double>(s.expert_bytes)
                            : 0.0;
  if (f.json) {
    const auto object = [](const bench::Quartiles& q) {
      return nlohmann::ordered_json{{"low", q.low}, {"median", q.median}, {"high", q.high}};
    };
    nlohmann::ordered_json out{{"extent_bytes", b->extent_bytes()},
                               {"extents", b->extents()},
                               {"drives", b->drives()},
                               {"backend", b->backend()},
                               {"depth_bytes", o.depth},
                               {"pairs", o.pairs},
                               {"loader_gb_s", object(ours)},
                               {"plain_gb_s", object(plain)},
                               {"ratio", object(ratio)},
                               {"loader_ms_p50", percentile(s.loader_ms, 0.5)},
                               {"loader_ms_p99", percentile(s.loader_ms, 0.99)},
                               {"plain_ms_p50", percentile(s.plain_ms, 0.5)},
                               {"plain_ms_p99", percentile(s.plain_ms, 0.99)}};
    if (s.device_bytes) out["device_bytes_per_expert_byte"] = device;
    std::printf("%s\n", out.dump().c_str());
    return {};
  }
  std::printf("%llu experts of %s on %u drive%s, %s, %s in flight on each\n",
              static_cast<unsigned long long>(b->extents()), plan::format_size(b->extent_bytes()).c_str(),
              b->drives(), b->drives() == 1 ? "" : "s", b->backend().c_str(),
              plan::format_size(o.depth).c_str());
  std::printf("loader: %.3f GB/s, an expert in %.2f ms, 99 %% within %.2f ms\n", ours.median,
              percentile(s.loader_ms, 0.5), percentile(s.loader_ms, 0.99));
  std::printf("plain:  %.3f GB/s, a read in %.2f ms, 99 %% within %.2f ms\n", plain.median,
              percentile(s.plain_ms, 0.5), percentile(s.plain_ms, 0.99));
  std::printf("ratio of %u pairs: %.3f (%.3f to %.3f)\n", o.pairs, ratio.median, ratio.low, ratio.high);
  if (s.device_bytes)
    std::printf("drive: %.4f bytes read (by everybody) for each byte of an expert\n", device);
  return {};
}

}  // namespace

void add_bench_stream(CLI::App& group, int& exit_code) {
  CLI::App* sub = group.add_subcommand("stream", "Random experts from the drive, beside plain direct reads");
  const auto f = std::make_shared<StreamFlags>();
  bench::StreamOptions& o = f->options;
  sub->add_option("MODEL", o.model, "A model folder, read with its stripes if it has any");
  sub->add_option("--size", f->size, "Without a model: bytes of an expert, such as 2650K")
      ->check(size_flag());
  sub->add_option("--dir", o.folder,
                  "Where the file for --size is made; it has no name, and goes when the run ends")
      ->capture_default_str();
  sub->add_option("--bank", f->bank, "Bytes of that file (default: 1G)")->check(size_flag());
  sub->add_option("--io", o.io, "auto, uring or pread")
      ->check(CLI::IsMember({"auto", "uring", "pread"}))
      ->capture_default_str();
  sub->add_option("--depth", f->depth, "Bytes in flight on a drive (default: what the engine uses, 4M)")
      ->check(size_flag());
  sub->add_flag("--plain-buffers", f->plain_buffers, "io_uring without registered buffers");
  sub->add_option("--pairs", o.pairs, "Turns of both")->check(CLI::Range(1, 1000))->capture_default_str();
  sub->add_option("--turn", f->turn, "Bytes read in a turn (default: 256M)")->check(size_flag());
  sub->add_flag("--json", f->json, "One JSON object");
  sub->callback([f, &exit_code] {
    const Status done = run(*f);
    if (!done.ok()) std::fprintf(stderr, "wisp bench stream: %s\n", done.error().text.c_str());
    exit_code = done.ok() ? 0 : 1;
  });
}

}  // namespace wisp::cli
