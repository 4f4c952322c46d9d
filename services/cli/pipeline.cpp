#include "services/cli/pipeline.hpp"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "model/convert.hpp"
#include "model/stripes.hpp"
#include "services/cli/draft_folder.hpp"
#include "services/cli/model_progress.hpp"
#include "services/cli/output_path.hpp"
#include "services/cli/size_flag.hpp"
#include "services/gateway/text/vocabulary.hpp"
#include "services/loader/drive_figures.hpp"
#include "services/loader/learned_counts.hpp"
#include "services/loader/loader_stage.hpp"

namespace wisp::cli {

namespace fs = std::filesystem;

namespace {
/// The loader counts the last touches of an answer within a fraction of a millisecond of its end.
constexpr auto kFigureLook = std::chrono::milliseconds(1);
constexpr int kFigureLooks = 500;
constexpr auto kLongestSettling = std::chrono::seconds(2);
}  // namespace

void add_pipeline_flags(CLI::App& c, PipelineFlags& f) {
  plan::RunOptions& o = f.options;
  c.add_option("MODEL", o.model, "Folder made by `wisp convert`")->required();
  const char* const group = "Memory and machine";
  const CLI::Validator size = size_flag();
  c.add_option("--ram", f.ram, "Memory for everything, as in 512M or 8G (default: 70 % of what is free)")
      ->check(size)
      ->group(group);
  c.add_option("--experts-ram", f.experts_ram, "Memory for experts alone")->check(size)->group(group);
  c.add_option("--ctx", o.ctx, "Tokens of context (default: the model's, at most 8192)")->group(group);
  c.add_option("--parallel", o.parallel, "Requests computed at a time")->capture_default_str()->group(group);
  c.add_option("--prompt-chunk", o.prompt_chunk,
               "Prompt tokens computed in one step (default: as memory allows)")
      ->group(group);
  c.add_option("--threads", o.threads, "Threads that compute (default: the cores this process may use)")
      ->group(group);
  c.add_option(
       "--profile", o.profile,
       "Numerics: exact; fast: bytes for the inputs of int4, int8 and MXFP4 weights; auto: what `wisp "
       "inspect` says")
      ->check(CLI::IsMember({"auto", "exact", "fast"}))
      ->capture_default_str()
      ->group(group);
  c.add_option("--kv", o.kv, "Numbers of the KV cache: f32 (exact), or bf16 in half the memory")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str()
      ->group(group);
  c.add_option("--prefill", o.prefill,
               "Latent attention over a prompt: absorbed, or naive in whole blocks of 512")
      ->check(CLI::IsMember({"absorbed", "naive"}))
      ->capture_default_str()
      ->group(group);
  c.add_option("--topology", o.topology, "full: a process per stage; solo: one process")
      ->check(CLI::IsMember({"full", "solo"}))
      ->capture_default_str()
      ->group(group);
  c.add_option("--io", o.io, "How the drive is read: auto, uring, pread (ghost: for tests)")
      ->check(CLI::IsMember({"auto", "uring", "pread", "ghost"}))
      ->capture_default_str()
      ->group(group);
  c.add_flag("--no-check", f.no_check, "Do not verify the checksum of each expert read")->group(group);
  c.add_flag("--no-learned-cache", f.no_learned_cache,
             "Neither use nor keep what earlier runs learned of the model (see wisp cache) and of the drive")
      ->group(group);
  c.add_flag("--no-prefetch", f.no_prefetch, "Never read experts before a layer asks for them")->group(group);
  c.add_option("--draft", f.draft,
               "A small model with the same vocabulary that guesses ahead: a converted folder, or a Hugging "
               "Face folder, which is converted once, to $XDG_STATE_HOME/wisp/drafts (~/.local/state)")
      ->group(group);
  c.add_option("--draft-log", f.draft_log,
               "Write down what decides how many tokens are guessed (see wisp trace speculation)")
      ->group(group);
  c.add_option(
       "--speculate", o.speculate,
       "Guesses of the next tokens, tried several at a time: off, auto (as many as pay), or 1 to 7. The "
       "answer is the same")
      ->capture_default_str()
      ->group(group);
  c.add_flag("--no-drive-probe", f.no_drive_probe,
             "Neither measure in idle time how the drive is read best nor use what was measured")
      ->group(group);
  c.add_option("--trace", f.trace, "Record which experts are chosen to this file (see wisp trace)")
      ->group(group);
  c.add_option("--log-level", o.log_level, "What the stages say on stderr: debug, info, warn, error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->default_val("warn")
      ->group(group);
  c.add_flag("-v,--verbose", f.verbose, "Show where the memory goes")->group(group);
}

void add_sampling_flags(CLI::App& c, Sampling& s) {
  const char* const group = "Sampling (default: what the model's publisher recommends)";
  // CLI11 reads "nan" and "inf", and JSON has no word for them: they would count as not given.
  const CLI::Validator finite(
      [](std::string& text) { return std::isfinite(std::atof(text.c_str())) ? "" : "not a number: " + text; },
      "NUMBER");
  c.add_option("-n,--max-tokens", s.max_tokens, "Tokens of an answer (default: all the room left)")
      ->group(group);
  c.add_flag("--ignore-eos", s.ignore_eos, "Write on past the end-of-text token")->group(group);
  const auto number = [&](const char* flag, std::optional<double>& to, const char* what) {
    c.add_option(flag, to, what)->check(finite)->group(group);
  };
  number("--temp", s.temperature, "Temperature; 0 takes the likeliest token");
  c.add_option("--top-k", s.top_k, "Draw from the k likeliest tokens; 0 = off")->group(group);
  number("--top-p", s.top_p, "Draw from the likeliest tokens that hold this share");
  number("--min-p", s.min_p, "Leave out tokens below this share of the likeliest");
  number("--presence-penalty", s.presence_penalty, "Taken off a token that the answer has");
  number("--frequency-penalty", s.frequency_penalty, "The same, for each time that it has it");
  number("--repetition-penalty", s.repetition_penalty, "Divides a token that prompt or answer has; 1 = off");
  // CLI11 takes the largest number for one that is larger.
  const CLI::Validator word(
      [](std::string& text) {
        std::uint64_t n = 0;
        const char* const end = text.data() + text.size();
        const auto parsed = std::from_chars(text.data(), end, n);
        return parsed.ec == std::errc{} && parsed.ptr == end ? "" : "not a whole number below 2^64: " + text;
      },
      "NUMBER");
  c.add_option("--seed", s.seed, "Makes a drawn answer repeatable")->check(word)->group(group);
}

namespace {

Error not_converted(const std::string& folder) {
  auto estimate = model::estimate(folder);
  if (!estimate.ok())
    return std::move(estimate).error().within(folder + " is a Hugging Face checkpoint, but");
  const ByHand by_hand = convert_by_hand(folder);
  std::error_code error;
  const fs::path place(by_hand.destination);
  const fs::path parent = place.has_parent_path() ? place.parent_path() : fs::path(".");
  const fs::space_info space = fs::space(parent, error);
  std::string text = folder +
                     " is a Hugging Face checkpoint, not a WISP model folder. Convert it once:\n\n    " +
                     by_hand.command + "\n\nThat writes " + show_bytes(static_cast<double>(estimate->bytes));
  if (!error)
    text += "; " + show_bytes(static_cast<double>(space.available)) + " are free in " + parent.string();
  return not_found(text + ".");
}

/// A flag that was checked when it was read; 0 where it was not given.
std::uint64_t size_flag(const std::string& text) {
  return text.empty() ? 0 : plan::parse_size(text).value();
}

}  // namespace

Result<OpenModel> open_model(const std::string& folder) {
  if (!model::is_wisp_folder(folder) && model::is_hf_folder(folder)) return not_converted(folder);
  WISP_ASSIGN(model::Manifest manifest, model::load_manifest(folder));
  WISP_TRY(model::load_stripes(folder, manifest));  // refused here rather than by a process behind
  std::error_code error;
  const bool tokenizer = fs::exists(fs::path(folder) / "tokenizer.json", error) ||
                         fs::exists(fs::path(folder) / "tiktoken.model", error);
  return OpenModel{std::move(manifest), tokenizer};
}

std::vector<std::string> folders_read(const PipelineFlags& flags) {
  std::vector<std::string> folders{flags.options.model};
  if (const auto stripes = model::stripe_folders(flags.options.model); stripes.ok())
    folders.insert(folders.end(), stripes->begin(), stripes->end());
  if (!flags.draft.empty()) {
    folders.push_back(flags.draft);
    if (std::string made = drafts_path(); !made.empty()) folders.push_back(std::move(made));
  }
  return folders;
}

Result<std::unique_ptr<Pipeline>> Pipeline::start(const OpenModel& model, const PipelineFlags& flags,
                                                  Console& console, Interrupts& interrupts) {
  plan::RunOptions options = flags.options;
  options.ram = size_flag(flags.ram);
  options.experts_ram = size_flag(flags.experts_ram);
  options.check_experts = !flags.no_check;
  options.prefetch = !flags.no_prefetch;
  options.text = model.has_tokenizer;
  std::error_code error;
  // The launcher and the stages may run elsewhere.
  if (const fs::path absolute = fs::absolute(options.model, error); !error) options.model = absolute.string();

  // A recording begins with an empty cache, so that a replay knows all that the policy knew.
  const bool learns = !flags.no_learned_cache && flags.trace.empty();
  const std::string learned = learns ? loader::learned_path(model.manifest.model_hash) : "";
  ::setenv(loader::kLearnedVariable, learned.c_str(), 1);
  const std::string drives = learns && !flags.no_drive_probe ? loader::drive_figures_path() : "";
  ::setenv(loader::kDrivesVariable, drives.c_str(), 1);

  std::unique_ptr<Pipeline> p(new Pipeline(console, interrupts));
  std::optional<model::Manifest> draft;
  const std::vector<std::string> read = folders_read(flags);
  if (!flags.draft.empty() && options.speculate != "off") {
    // What is refused without a draft is refused before one is converted.
    WISP_TRY(plan::make_plan(model.manifest, options, plan::memory_here()));
    for (const auto& [option, file] :
         {std::pair{flags.trace_option, flags.trace}, {std::string("--draft-log"), flags.draft_log}})
      if (!file.empty()) WISP_TRY(output_path(option, file, read));
    // A checkpoint is converted here, before there is a plan: what that takes of memory is free again.
    WISP_ASSIGN(p->draft_, draft_folder(flags.draft, options.model, console, interrupts));
    options.draft = p->draft_.folder;
    auto loaded = model::load_manifest(options.draft);
    if (!loaded.ok()) return std::move(loaded).error().within("--draft");
    draft = std::move(*loaded);
    auto same = text::compare_vocabularies(options.model, options.draft);
    if (!same.ok()) return std::move(same).error().within("--draft");
  }
  if (!flags.trace.empty() && options.speculate != "auto" && options.speculate != "off")
    console.notice("a trace is of plain decoding: --speculate " + options.speculate + " is left aside");
  // The plan depends on whether there is a trace; what is there of its file is touched by none that fails.
  options.trace = flags.trace;
  WISP_ASSIGN(p->plan_,
              plan::make_plan(model.manifest, options, plan::memory_here(), draft ? &*draft : nullptr));
  WISP_ASSIGN(p->recording_, Recording::prepare(flags.trace_option, flags.trace, read));
  p->plan_.options.trace = p->recording_.path();
  if (!flags.draft_log.empty()) {
    WISP_ASSIGN(p->plan_.options.draft_log, output_path("--draft-log", flags.draft_log, read));
    const std::string& log = p->plan_.options.draft_log;
    const Fd fd(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd.valid()) return io_error("--draft-log " + log + ": " + std::strerror(errno));
  }
  const std::string budget = plan::describe(p->plan_);
  console.print(flags.verbose ? budget : budget.substr(0, budget.find('\n') + 1));
  console.progress("loading " + p->plan_.model_name + " ...");
  WISP_ASSIGN(p->session_, Session::start(p->plan_, interrupts,
                                          [&console](const std::string& line) { console.notice(line); }));
  return p;
}

Status Pipeline::check() {
  WISP_TRY(session_->check());
  const auto state = RunState::open(session_->ready().run_dir);
  // A launcher that is busy or held says nothing about the run.
  if (!state.ok()) return {};
  if (const auto reason = state->given_up()) return unavailable(*reason);
  return {};
}

StreamWorld Pipeline::world() {
  StreamWorld w;
  w.check = [this] { return check(); };
  w.watches = {{[this] { return interrupts_.fd(); }, [this] { return !interrupts_.came(); }},
               session_->events()};
  return w;
}

void Pipeline::settle() const {
  const auto state = RunState::open(session_->ready().run_dir);
  const auto until = std::chrono::steady_clock::now() + kLongestSettling;
  // A loader that is held, or reads for later, is not waited for.
  while (state.ok() && !state->loader_is_settled() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

RunFigures Pipeline::figures() const {
  const auto state = RunState::open(session_->ready().run_dir);
  if (state.ok()) {
    // A loader that is stopped or gone never catches up: then its figures are what they are.
    for (int i = 0; i < kFigureLooks && !state->touches_counted(); ++i)
      std::this_thread::sleep_for(kFigureLook);
    return figures_of(*state);
  }
  console_.notice("the run's counters are gone: " + state.error().text);
  RunFigures f;
  f.slots = plan_.cache_slots();
  f.prefetch_slots = plan_.prefetch_slots;
  f.experts = plan_.expert_extents;
  f.ram_budget_bytes = plan_.ram_budget;
  f.profile = plan_.profile;
  f.profile_reason = plan_.profile_reason;
  return f;
}

void show_comment(Console& console, std::string_view text) {
  if (text.starts_with("prompt ")) return console.progress(std::string(text));
  if (!text.starts_with("wisp ")) return;
  // Deaths and returns are told by the launcher, also when it is the gateway that died.
  const bool told = text.find(" stopped (") != std::string_view::npos || text.ends_with(" is back");
  if (!told) console.notice(std::string(text.substr(5)));
}

void explain_end(Console& console, const Answer& a, const Sampling& s, const plan::RunPlan& plan) {
  if (a.finish_reason == "cancelled") console.notice("the answer was stopped");
  if (a.finish_reason != "length") return;
  const bool by_flag = s.max_tokens && a.completion_tokens >= *s.max_tokens;
  if (by_flag)
    console.notice("the answer was cut after " + std::to_string(a.completion_tokens) +
                   " tokens; a larger -n (--max-tokens) lets it go on");
  else
    console.notice("the answer was cut because the context of " + std::to_string(plan.ctx) +
                   " tokens is full; a larger --ctx makes room, where the model allows it");
}

int report(const char* command, const Error& error) {
  std::fprintf(stderr, "wisp %s: %s\n", command, error.text.c_str());
  return error.code == ErrorCode::kInterrupted ? 130 : 1;
}

}  // namespace wisp::cli
