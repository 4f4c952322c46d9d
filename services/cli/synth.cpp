#include "services/cli/synth.hpp"

#include <cstdio>
#include <functional>
#include <memory>

#include "model/synth.hpp"
#include "services/cli/model_progress.hpp"

namespace wisp::cli {
namespace {

void print_routes(const model::SynthOptions& o, const model::SynthReport& r) {
  const auto& s = r.routes;
  std::fprintf(
      stderr,
      "ids 0 to %u follow %s: overlap with the token 1, 2, 4, 8 back %.2f %.2f %.2f %.2f; experts of "
      "2, 4, 8, 16, 32 tokens %.2f %.2f %.2f %.2f %.2f of one's",
      r.route_tokens - 1, o.routes.c_str(), s.overlap[0], s.overlap[1], s.overlap[2], s.overlap[3],
      s.growth[0], s.growth[1], s.growth[2], s.growth[3], s.growth[4]);
  if (s.touched > 0.0) std::fprintf(stderr, "; %.0f %% of all in %u tokens", 100.0 * s.touched, s.kLongRun);
  std::fputc('\n', stderr);
}

int run(const model::SynthOptions& options) {
  ByteProgress progress("writing");
  const auto report = model::synth(options, std::ref(progress));
  progress.clear();
  if (!report.ok()) {
    std::fprintf(stderr, "wisp synth: %s\n", report.error().text.c_str());
    return 1;
  }
  std::fprintf(stderr, "%s: random weights, %llu experts of %s, %s in %.1f s\n", options.destination.c_str(),
               static_cast<unsigned long long>(report->experts),
               show_bytes(static_cast<double>(report->stride)).c_str(),
               show_bytes(static_cast<double>(report->bytes)).c_str(), report->seconds);
  if (report->route_tokens != 0) print_routes(options, *report);
  if (!options.gguf.empty())
    std::fprintf(stderr, "%s: the same weights for llama.cpp, %s\n", options.gguf.c_str(),
                 show_bytes(static_cast<double>(report->gguf_bytes)).c_str());
  return 0;
}

}  // namespace

void add_synth(CLI::App& app, int& exit_code) {
  CLI::App* sub =
      app.add_subcommand("synth", "Write a random model in the shape of a real one, for measurements");
  const auto o = std::make_shared<model::SynthOptions>();
  sub->add_option("--out,DST", o->destination, "The model folder to make")->required();
  sub->add_option("--like", o->like, "The shape to start from")
      ->check(CLI::IsMember(model::synth_shapes()))
      ->capture_default_str();
  sub->add_option("--layers", o->layers, "Decoder layers");
  sub->add_option("--hidden", o->hidden, "Hidden size");
  sub->add_option("--heads", o->heads, "Attention heads");
  sub->add_option("--kv-heads", o->kv_heads, "Key and value heads");
  sub->add_option("--head-dim", o->head_dim, "Entries of a head");
  sub->add_option("--experts", o->experts, "Experts in a layer");
  sub->add_option("--top-k", o->top_k, "Experts chosen for a token");
  sub->add_option("--width", o->width, "Intermediate size of an expert");
  sub->add_option("--vocab", o->vocab, "Rows of the embedding");
  sub->add_option("--max-positions", o->max_positions, "Longest context");
  sub->add_option("--expert-format", o->expert_format, "int4, int8, fp8, mxfp4, bf16 or f32")
      ->capture_default_str();
  sub->add_option("--dense-format", o->dense_format,
                  "Of what is always in memory, routers and norms apart; without it as the family has it");
  sub->add_option("--group", o->group, "Columns to a scale of int4 and int8: 32, 64 or 128")
      ->capture_default_str();
  sub->add_option("--seed", o->seed, "The same seed gives the same bytes")->capture_default_str();
  sub->add_option(
      "--routes", o->routes,
      "Routers that follow a routing trace (see wisp trace), or calibrated: as real models repeat; "
      "ids 0, 1, 2, ... are its tokens, and greedy decoding says them in order");
  sub->add_option(
         "--route-tokens", o->route_tokens,
         "Tokens of the route, after which it begins again (default: the whole trace; 512 calibrated "
         "ones or as many as fit)")
      ->check(CLI::Range(1u, 1u << 24));
  sub->add_option("--early-recall", o->early_recall,
                  "Share of a token's experts that a router chooses when it is given the row that the router "
                  "of the layer before had (default: all); halves the tokens that fit")
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--gguf", o->gguf,
                  "Write the same weights to this file for llama.cpp too (int4 as Q4_0, int8 as Q8_0)");
  sub->add_flag("--force", o->force, "Replace DST if it is a WISP model folder");
  sub->callback([o, &exit_code] { exit_code = run(*o); });
}

}  // namespace wisp::cli
