#include "services/cli/bench_engine.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "services/cli/ids.hpp"
#include "services/cli/run_state.hpp"
#include "services/cli/size_flag.hpp"
#include "trace/route_trace.hpp"

namespace wisp::cli {

namespace {

namespace fs = std::filesystem;
using bench::EngineTurn;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The default of --plain, and what any model may be asked for.
constexpr std::uint64_t kPlainBytes = std::uint64_t{256} << 20;

/// A file of our own for a trace.
Result<std::string> temporary_file() {
  std::error_code error;
  std::string path = (fs::temp_directory_path(error) / "wisp-bench-XXXXXX").string();
  if (error) return io_error("no folder for temporary files: " + error.message());
  const Fd fd(::mkstemp(path.data()));
  if (!fd.valid()) return io_error(path + ": " + std::strerror(errno));
  return path;
}

bench::Quartiles quartiles(const std::vector<EngineTurn>& turns,
                           const std::function<std::optional<double>(const EngineTurn&)>& figure, bool& any) {
  std::vector<double> numbers;
  for (const EngineTurn& t : turns)
    if (const auto x = figure(t)) numbers.push_back(*x);
  any = !numbers.empty();
  return bench::quartiles_of(std::move(numbers));
}

}  // namespace

void add_engine_bench_flags(CLI::App& c, EngineBenchFlags& f) {
  f.pipeline.options.speculate = "off";  // a step is a token, unless it is asked for
  add_pipeline_flags(c, f.pipeline);
  CLI::Option* prompt = c.add_option("--prompt", f.prompt, "Tokens of a prompt: ids 0, 1, 2, ..")
                            ->check(CLI::Range(1u, 1u << 20));
  prompt->capture_default_str();
  c.add_option_function<std::string>(
       "--ids",
       [&f](const std::string& text) {
         auto read = read_ids(text);
         if (!read) throw CLI::ValidationError("--ids", "not ids like 1,2,3: \"" + text + "\"");
         f.ids = std::move(*read);
       },
       "A prompt of one's own, the same in every turn: 1,2,3")
      ->excludes(prompt);
  c.add_option("--pairs", f.pairs, "Turns of requests and plain reads")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  c.add_option("--plain", f.plain_bytes, "Bytes of each stretch of plain reads")
      ->check(size_flag())
      ->capture_default_str();
  c.add_flag("--json", f.json, "One JSON object");
}

Result<std::unique_ptr<EngineBench>> EngineBench::create(const EngineBenchFlags& flags) {
  WISP_ASSIGN(Interrupts interrupts, Interrupts::install());
  std::unique_ptr<EngineBench> b(new EngineBench(flags, std::move(interrupts)));
  EngineBenchFlags& f = b->flags_;
  // stdout is for figures.
  spdlog::set_default_logger(spdlog::stderr_logger_st("bench"));
  spdlog::set_level(spdlog::level::warn);
  if (!f.pipeline.trace.empty())
    return invalid("--trace: a recording is no measurement; see wisp trace record");
  WISP_ASSIGN(b->model_, open_model(f.pipeline.options.model));
  if (!f.ids.empty()) f.prompt = static_cast<std::uint32_t>(f.ids.size());
  for (const std::uint32_t id : f.ids)
    if (id >= b->model_.manifest.spec.vocab)
      return invalid("--ids: the model has no id " + std::to_string(id));
  if (f.pipeline.options.ctx == 0) f.pipeline.options.ctx = f.prompt + f.tokens;
  f.pipeline.options.port = -1;
  f.pipeline.no_learned_cache = true;  // what earlier runs left would be part of the figures
  bench::StreamOptions o;
  o.model = f.pipeline.options.model;
  o.io = "pread";  // only plain reads are asked of it
  WISP_ASSIGN(o.turn_bytes, plan::parse_size(f.plain_bytes));
  const model::ModelSpec& spec = b->model_.manifest.spec;
  const std::uint64_t most = std::max(kPlainBytes, spec.expert_count() * spec.expert.stride);
  if (o.turn_bytes > most)
    return invalid("--plain " + f.plain_bytes + ": at most " + plan::format_size(most) +
                   (most > kPlainBytes ? ", all experts of this model" : " for a model of this size"));
  o.stop = [&came = b->interrupts_] { return came.came(); };
  WISP_ASSIGN(b->plain_, bench::StreamBench::create(o));
  return b;
}

Status EngineBench::start() {
  pipeline_.reset();
  WISP_ASSIGN(pipeline_, Pipeline::start(model_, flags_.pipeline, console_, interrupts_));
  plan_ = pipeline_->plan();
  return {};
}

Question EngineBench::question(std::uint32_t number) const {
  Question q;
  q.model = model_.manifest.name;
  q.sampling.max_tokens = flags_.tokens;
  q.sampling.temperature = 0.0;
  q.sampling.ignore_eos = true;
  q.ids = flags_.ids;
  const std::uint64_t first = flags_.cold ? 0 : std::uint64_t{number} * (flags_.prompt + flags_.tokens);
  for (std::uint32_t i = 0; q.ids.size() < flags_.prompt; ++i)
    q.ids.push_back(static_cast<std::uint32_t>((first + i) % model_.manifest.spec.vocab));
  return q;
}

Status EngineBench::note_engine() {
  WISP_ASSIGN(const RunState state, RunState::open(pipeline_->session().ready().run_dir));
  direct_ = shm::extra_of<shm::LoaderBoard>(&state.desk(shm::StageId::kLoader))
                ->direct.load(std::memory_order_relaxed) != 0;
  return {};
}

Status EngineBench::count_unique(EngineTurn& turn) const {
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  const auto take = [&](const trace::RouteLine& line) {
    if (!line.decode) seen.emplace(line.layer, line.expert);
  };
  WISP_TRY(trace::read_trace(trace_, take));
  turn.unique = seen.size();
  return {};
}

Result<EngineTurn> EngineBench::turn(std::uint32_t number) {
  EngineTurn t;
  const double began = now_s();
  t.cold = pipeline_ == nullptr || flags_.cold;
  if (t.cold) WISP_TRY(start());
  const RunFigures before = t.cold ? RunFigures{} : pipeline_->figures();
  // Dense bytes are the first that a new engine reads.
  t.dense_bytes = plan_.dense_bytes;
  const std::uint64_t read = pipeline_->figures().device_bytes_read;
  t.dense_left = t.dense_bytes - std::min(t.dense_bytes, read);
  const double asked = now_s();
  WISP_ASSIGN(const Answer a,
              ask(
                  question(number), pipeline_->session().ready().unix_socket, pipeline_->world(),
                  [](const std::string&) {}, [&](std::string_view text) { show_comment(console_, text); }));
  if (a.finish_reason == "cancelled") return interrupted("interrupted");
  if (a.resumes != 0) return unavailable("a process of the engine died in mid-answer");
  t.started_s = asked - began + a.ttft_s;
  t.first_s = a.ttft_s;
  t.prompt = flags_.prompt;
  t.tokens = a.completion_tokens;
  if (a.decode_tok_s > 0.0) t.decode_s = static_cast<double>(t.tokens - 1) / a.decode_tok_s;
  pipeline_->settle();
  const RunFigures f = pipeline_->figures().since(before);
  t.stride = plan_.stride;
  t.accesses = f.accesses;
  t.hits = f.hits;
  t.prompt_accesses = f.prompt_accesses;
  t.prompt_hits = f.prompt_hits;
  t.expert_bytes = f.expert_bytes_read;
  t.expert_wait_s = static_cast<double>(f.decode.expert_wait) / 1e9;
  WISP_TRY(note_engine());
  if (flags_.cold) pipeline_.reset();
  if (flags_.record) WISP_TRY(count_unique(t));
  return t;
}

Result<std::vector<EngineTurn>> EngineBench::measure() {
  if (flags_.record) {
    WISP_ASSIGN(trace_, temporary_file());
    flags_.pipeline.trace = trace_;
  }
  const auto all = [&]() -> Result<std::vector<EngineTurn>> {
    std::vector<EngineTurn> turns;
    WISP_ASSIGN(double before, plain_->plain_gb_s());
    for (std::uint32_t i = 0; i < flags_.pairs; ++i) {
      console_.progress("turn " + std::to_string(i + 1) + " of " + std::to_string(flags_.pairs));
      WISP_ASSIGN(EngineTurn t, turn(i));
      WISP_ASSIGN(const double after, plain_->plain_gb_s());
      t.plain_rate = (before + after) / 2 * 1e9;
      before = after;
      turns.push_back(t);
    }
    WISP_TRY(check_counters(turns));
    return turns;
  };
  auto turns = all();
  pipeline_.reset();
  if (!trace_.empty()) ::unlink(trace_.c_str());
  if (turns.ok() && !direct_)
    console_.notice(
        "the engine read its files through the page cache: bytes that were in it cost no drive, and "
        "the ratios to plain direct reads mean little");
  return turns;
}

std::string EngineBench::machine() const {
  return plan_.model_name + ": " + std::to_string(plan_.expert_extents) + " experts of " +
         plan::format_size(plan_.stride) + ", room for " + std::to_string(plan_.cache_slots()) + "; " +
         std::to_string(plan_.threads) + " threads, " + plan_.profile + ", " + plan_.options.topology + ", " +
         (direct_ ? "direct reads" : "reads through the page cache");
}

nlohmann::ordered_json EngineBench::machine_json() const {
  return {{"model", plan_.model_name},
          {"experts", plan_.expert_extents},
          {"stride", plan_.stride},
          {"slots", plan_.cache_slots()},
          {"prefetch_slots", plan_.prefetch_slots},
          {"dense_bytes", plan_.dense_bytes},
          {"ram_budget_bytes", plan_.ram_budget},
          {"threads", plan_.threads},
          {"profile", plan_.profile},
          {"topology", plan_.options.topology},
          {"direct", direct_},
          {"pairs", flags_.pairs},
          {"prompt", flags_.prompt}};
}

std::string spread_line(const char* name, const std::vector<EngineTurn>& turns,
                        const std::function<std::optional<double>(const EngineTurn&)>& figure,
                        const char* unit) {
  bool any = false;
  const bench::Quartiles q = quartiles(turns, figure, any);
  if (!any) return {};
  char text[200];
  std::snprintf(text, sizeof text, "%-42s %.3f%s%s (%.3f to %.3f)\n", name, q.median, *unit != 0 ? " " : "",
                unit, q.low, q.high);
  return text;
}

nlohmann::ordered_json spread_json(const std::vector<EngineTurn>& turns,
                                   const std::function<std::optional<double>(const EngineTurn&)>& figure) {
  bool any = false;
  const bench::Quartiles q = quartiles(turns, figure, any);
  if (!any) return nullptr;
  return {{"low", q.low}, {"median", q.median}, {"high", q.high}};
}

}  // namespace wisp::cli
