#include "services/cli/trace.hpp"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "services/cli/commands.hpp"
#include "services/cli/pipeline.hpp"
#include "services/replay/replay.hpp"
#include "services/router/draft_log.hpp"

namespace wisp::cli {

namespace {

struct ReplayFlags {
  std::string file;
  std::uint32_t slots = 0;
  std::string policy = "default";
  bool json = false;
};

std::string share(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "";
  char text[32];
  std::snprintf(text, sizeof text, " (%.1f %%)",
                100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

Result<int> run_replay(const ReplayFlags& f) {
  WISP_ASSIGN(const replay::Policy policy, replay::policy_of(f.policy));
  WISP_ASSIGN(const trace::Trace trace, trace::read_trace(f.file));
  const replay::Figures r = replay::replay(trace, f.slots, policy);
  std::string text;
  if (f.json) {
    const nlohmann::ordered_json line{{"accesses", r.accesses},
                                      {"hits", r.hits},
                                      {"decode_accesses", r.decode_accesses},
                                      {"decode_hits", r.decode_hits},
                                      {"touches", trace.touches.size()},
                                      {"layers", trace.model.layers},
                                      {"experts", trace.model.experts},
                                      {"restarts", trace.restarts},
                                      {"slots", f.slots},
                                      {"policy", f.policy}};
    text = line.dump() + "\n";
  } else {
    text = "accesses " + std::to_string(r.accesses) + "\nhits " + std::to_string(r.hits) +
           share(r.hits, r.accesses) + "\ndecode accesses " + std::to_string(r.decode_accesses) +
           "\ndecode hits " + std::to_string(r.decode_hits) + share(r.decode_hits, r.decode_accesses) + "\n";
  }
  if (trace.restarts != 0)
    std::fprintf(
        stderr, "the engine that wrote %s lost a process %llu times: from there on its own hits are others\n",
        f.file.c_str(), static_cast<unsigned long long>(trace.restarts));
  if (trace.cut)
    std::fprintf(
        stderr,
        "the last line of %s has no end: the file may have been cut there, and is replayed as it is\n",
        f.file.c_str());
  std::fputs(text.c_str(), stdout);
  if (std::fflush(stdout) != 0) return io_error("the figures could not be written to stdout");
  return 0;
}

void add_replay(CLI::App& parent, int& exit_code) {
  CLI::App* c = parent.add_subcommand("replay", "Count the hits of a cache over a trace, without an engine");
  const auto f = std::make_shared<ReplayFlags>();
  c->add_option("TRACE", f->file, "Routing trace; - reads standard input")->required();
  c->add_option("--slots", f->slots, "Experts that the cache holds")
      ->required()
      ->check(CLI::Range(1u, 1u << 30));
  c->add_option("--policy", f->policy,
                "default: the engine's; lru; belady: the bound, which knows the future")
      ->check(CLI::IsMember({"default", "lru", "belady"}))
      ->capture_default_str();
  c->add_flag("--json", f->json, "One JSON object");
  c->footer(
      "Consecutive lines with the same layer are one touch; its distinct experts are the accesses, and "
      "those\n"
      "in the cache when it begins are the hits.");
  c->callback([f, &exit_code] {
    auto code = run_replay(*f);
    exit_code = code.ok() ? *code : report("trace replay", code.error());
  });
}

struct SpeculationFlags {
  std::string file;
  bool json = false, steps = false;
};

Result<int> run_speculation(const SpeculationFlags& f) {
  const auto print = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  std::function<void(const std::string&)> show;
  if (f.steps) show = print;
  WISP_ASSIGN(const router::DraftReplay r, router::replay_drafts(f.file, show));
  const auto rate = [](std::uint64_t tokens, std::uint64_t ns) {
    return ns == 0 ? 0.0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(ns);
  };
  const std::uint64_t plain_tokens = r.tokens - r.draft_tokens, plain_ns = r.ns - r.draft_ns;
  const double with = rate(r.draft_tokens, r.draft_ns), plain = rate(plain_tokens, plain_ns);
  if (f.json) {
    const nlohmann::ordered_json j{{"decisions", r.decisions},
                                   {"different", r.different},
                                   {"steps", r.steps},
                                   {"draft_steps", r.draft_steps},
                                   {"drafted", r.drafted},
                                   {"tokens", r.tokens},
                                   {"draft_tokens", r.draft_tokens},
                                   {"draft_tok_s", with},
                                   {"plain_tok_s", plain},
                                   {"waited_ms", static_cast<double>(r.waited_ns) / 1e6}};
    print(j.dump());
  } else {
    std::printf("%lu steps, %lu of them with drafts (%lu in all)\n", r.steps, r.draft_steps, r.drafted);
    std::printf("%.1f tokens per second with drafts, %.1f in plain steps; %.2f ms waited for drafts\n", with,
                plain, static_cast<double>(r.waited_ns) / 1e6);
    std::printf("%lu decisions, %lu of them different when made again\n", r.decisions, r.different);
  }
  return r.different == 0 ? 0 : 1;
}

void add_speculation(CLI::App& parent, int& exit_code) {
  CLI::App* c = parent.add_subcommand(
      "speculation", "How many tokens were guessed at each step, and why; decides again and compares");
  const auto f = std::make_shared<SpeculationFlags>();
  c->add_option("LOG", f->file, "File of `wisp run --draft-log`")->required();
  c->add_flag("--steps", f->steps, "A line for each choice");
  c->add_flag("--json", f->json, "One JSON object");
  c->footer("Ends with 1 where a decision made again is another one.");
  c->callback([f, &exit_code] {
    auto code = run_speculation(*f);
    exit_code = code.ok() ? *code : report("trace speculation", code.error());
  });
}

}  // namespace

void add_trace(CLI::App& app, int& exit_code) {
  CLI::App* c = app.add_subcommand(
      "trace", "Record and replay which experts a model chooses, and what was guessed ahead");
  c->require_subcommand(1);
  add_trace_record(*c, exit_code);
  add_replay(*c, exit_code);
  add_speculation(*c, exit_code);
}

}  // namespace wisp::cli
