#include <cstdio>
#include <memory>

#include "services/cli/bench.hpp"
#include "services/cli/bench_engine.hpp"

namespace wisp::cli {

namespace {

using bench::EngineTurn;
using Figure = std::function<std::optional<double>(const EngineTurn&)>;

struct Row {
  const char* key;   ///< in JSON
  const char* name;  ///< for people
  const char* unit;
  Figure figure;
};

double per_token(const EngineTurn& t, std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(t.tokens - 1) / 1e6;
}

const std::vector<Row>& decode_rows() {
  static const std::vector<Row> rows{
      {"tok_s", "decode", "tok/s", [](const EngineTurn& t) { return t.decode_tok_s(); }},
      {"first_token_s", "first token", "s", [](const EngineTurn& t) { return t.first_s; }},
      {"hit_rate", "experts found in memory, share", "", [](const EngineTurn& t) { return t.hit_rate(); }},
      {"missed_mb_token", "experts read", "MB/token",
       [](const EngineTurn& t) { return per_token(t, t.missed_bytes()); }},
      {"missed_gb_s", "missed experts, over decode's whole time", "GB/s",
       [](const EngineTurn& t) { return t.missed_rate() / 1e9; }},
      {"plain_gb_s", "plain direct reads", "GB/s", [](const EngineTurn& t) { return t.plain_rate / 1e9; }},
      {"p1", "P1: missed experts / plain reads", "", [](const EngineTurn& t) { return t.drive_share(); }},
      {"p12", "P12: time / max(I/O, compute)", "", [](const EngineTurn& t) { return t.overlap(); }},
      {"p20_request", "P20: cold first token / bytes, from the request", "",
       [](const EngineTurn& t) { return t.cold ? t.first_from_request() : std::nullopt; }},
      {"p20_start", "P20: the same from the start of the engine", "",
       [](const EngineTurn& t) { return t.first_from_start(); }}};
  return rows;
}

const std::vector<Row>& prefill_rows() {
  static const std::vector<Row> rows{
      {"prompt_tok_s", "prompt", "tok/s",
       [](const EngineTurn& t) { return static_cast<double>(t.prompt) / t.first_s; }},
      {"first_token_s", "first token", "s", [](const EngineTurn& t) { return t.first_s; }},
      {"expert_mb", "experts read", "MB",
       [](const EngineTurn& t) { return static_cast<double>(t.expert_bytes) / 1e6; }},
      {"unique_experts", "different experts", "",
       [](const EngineTurn& t) { return static_cast<double>(t.unique); }},
      {"p18", "P18: bytes read / different experts' bytes", "",
       [](const EngineTurn& t) { return t.read_amplification(); }},
      {"plain_gb_s", "plain direct reads", "GB/s", [](const EngineTurn& t) { return t.plain_rate / 1e9; }},
      {"p20_request", "P20: first token / bytes, from the request", "",
       [](const EngineTurn& t) { return t.first_from_request(); }},
      {"p20_start", "P20: the same from the start of the engine", "",
       [](const EngineTurn& t) { return t.first_from_start(); }}};
  return rows;
}

Status run(const EngineBenchFlags& f, const std::vector<Row>& rows, const std::string& what) {
  WISP_ASSIGN(const auto b, EngineBench::create(f));
  WISP_ASSIGN(const std::vector<EngineTurn> turns, b->measure());
  if (f.json) {
    nlohmann::ordered_json out = b->machine_json();
    out["tokens"] = f.tokens;
    out["cold"] = f.cold;
    for (const Row& r : rows) out[r.key] = spread_json(turns, r.figure);
    out["turns"] = nlohmann::ordered_json::array();
    for (const EngineTurn& t : turns)
      out["turns"].push_back({{"cold", t.cold},
                              {"accesses", t.accesses},
                              {"hits", t.hits},
                              {"prompt_accesses", t.prompt_accesses},
                              {"prompt_hits", t.prompt_hits},
                              {"expert_bytes", t.expert_bytes},
                              {"first_s", t.first_s},
                              {"decode_s", t.decode_s},
                              {"expert_wait_s", t.expert_wait_s},
                              {"plain_gb_s", t.plain_rate / 1e9}});
    std::printf("%s\n", out.dump().c_str());
    return {};
  }
  std::string text = b->machine() + "\n" + what + "\n";
  for (const Row& r : rows) text += spread_line(r.name, turns, r.figure, r.unit);
  std::fputs(text.c_str(), stdout);
  return {};
}

std::string turns_of(const EngineBenchFlags& f) {
  return std::to_string(f.pairs) + " turns, each between plain direct reads; median and quartiles";
}

int end(const char* command, const Status& done) {
  return done.ok() ? 0 : report((std::string("bench ") + command).c_str(), done.error());
}

}  // namespace

void add_bench_decode(CLI::App& group, int& exit_code) {
  CLI::App* c =
      group.add_subcommand("decode", "Greedy decode of an engine, in turns with plain direct reads");
  const auto f = std::make_shared<EngineBenchFlags>();
  add_engine_bench_flags(*c, *f);
  c->add_option("-n,--tokens", f->tokens, "Tokens written in a turn")
      ->check(CLI::Range(2u, 1u << 20))
      ->capture_default_str();
  c->add_flag("--cold", f->cold, "A new engine for each turn, with an empty cache, and the same prompt");
  c->footer(
      "Without --cold one engine answers all turns, each with a prompt of further ids; only the first finds "
      "an "
      "empty\n"
      "cache, and P20 is of that one. Ids of a model made by wisp synth --routes follow its routes. The page "
      "cache has\n"
      "no part in it. Turns whose counters contradict each other end the run.");
  c->callback([f, &exit_code] {
    const std::string what = std::to_string(f->tokens) + " tokens after " +
                             std::to_string(f->ids.empty() ? f->prompt : f->ids.size()) +
                             (f->cold ? ", a new engine each time; " : ", one engine; ") + turns_of(*f);
    exit_code = end("decode", run(*f, decode_rows(), what));
  });
}

void add_bench_prefill(CLI::App& group, int& exit_code) {
  CLI::App* c =
      group.add_subcommand("prefill", "A prompt with an empty cache, in turns with plain direct reads");
  const auto f = std::make_shared<EngineBenchFlags>();
  f->prompt = 512;
  f->tokens = 1;
  f->cold = f->record = true;
  add_engine_bench_flags(*c, *f);
  c->footer(
      "Each turn is a new engine. The prompt's different experts are counted in the routing trace that the "
      "engine\n"
      "records. The page cache has no part in it. Turns whose counters contradict each other end the run.");
  c->callback([f, &exit_code] {
    const std::string what = "a prompt of " + std::to_string(f->ids.empty() ? f->prompt : f->ids.size()) +
                             " tokens, a new engine each time; " + turns_of(*f);
    exit_code = end("prefill", run(*f, prefill_rows(), what));
  });
}

}  // namespace wisp::cli
