#include "harness.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>

#include "launch/supervisor.hpp"
#include "model/convert.hpp"

namespace wisp::crash {

using shm::StageId;

namespace {

constexpr std::uint32_t kTopLogprobs = 2;

/// Converted models, and their folders' end.
class Models {
 public:
  Models() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wisp-crash-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~Models() { std::filesystem::remove_all(root_); }

  const std::string& of(const std::string& checkpoint) {
    const auto known = folders_.find(checkpoint);
    if (known != folders_.end()) return known->second;
    namespace fs = std::filesystem;
    const fs::path name = fs::path(checkpoint).filename(), source = root_ / "source" / name;
    fs::create_directories(source);
    for (const auto& f : fs::directory_iterator(fs::path(WISP_TEST_DATA) / checkpoint))
      if (!f.path().filename().string().starts_with("expected"))
        fs::copy(f.path(), source / f.path().filename());
    model::ConvertOptions o;
    o.source = source;
    o.destination = root_ / name;
    auto report = model::convert(o, {});
    if (!report.ok()) throw std::runtime_error(report.error().text);
    return folders_.emplace(checkpoint, o.destination).first->second;
  }

 private:
  std::filesystem::path root_;
  std::map<std::string, std::string> folders_;
};

std::string blank(const std::string& data) {
  static const std::regex volatile_fields(R"re("(id|created)":("[^"]*"|[0-9]+))re");
  return std::regex_replace(data, volatile_fields, R"("$1":_)");
}

cli::Interrupts& interrupts() {
  static cli::Interrupts i = cli::Interrupts::install().value();
  return i;
}

/// The pipeline that the watchdog describes.
const TestRun* watched = nullptr;

}  // namespace

const std::string& model_of(const std::string& checkpoint) {
  static Models models;
  return models.of(checkpoint);
}

void await(const char* what, const std::function<bool()>& condition, int seconds) {
  const std::uint64_t limit = shm::monotonic_now() + static_cast<std::uint64_t>(seconds) * 1'000'000'000ULL;
  while (!condition()) {
    if (shm::monotonic_now() > limit) {
      std::fprintf(stderr, "watchdog: waited %d s for: %s\n", seconds, what);
      if (watched != nullptr) std::fputs(watched->describe().c_str(), stderr);
      std::abort();
    }
    ::poll(nullptr, 0, 1);
  }
}

RunSettings with_drafts(RunSettings settings) {
  settings.speculate = "3";
  settings.draft = "pocket-dictionary-draft";
  return settings;
}

TestRun::TestRun(const RunSettings& settings)
    : interrupts_(interrupts()), logits_(!settings.logits_dir.empty()) {
  const std::string folder = settings.model.empty() ? bundled_model() : settings.model;
  auto manifest = model::load_manifest(folder);
  if (!manifest.ok()) throw std::runtime_error(manifest.error().text);
  plan::RunOptions o;
  o.model = folder;
  o.experts_ram = settings.slots * manifest->spec.expert.stride;
  o.prompt_chunk = settings.prompt_chunk;
  o.threads = settings.threads;
  o.topology = settings.topology;
  o.io = settings.io;
  o.kv = settings.kv;
  o.prefill = settings.prefill;
  o.logits_dir = settings.logits_dir;
  o.speculate = settings.speculate;
  o.logprobs = 1 + kTopLogprobs;
  std::optional<model::Manifest> draft;
  if (!settings.draft.empty()) {
    o.draft = model_of(settings.draft);
    auto loaded = model::load_manifest(o.draft);
    if (!loaded.ok()) throw std::runtime_error(loaded.error().text);
    draft = std::move(loaded).value();
  }
  o.port = -1;
  o.log_level = "info";
  auto plan = plan::make_plan(*manifest, o, plan::memory_here(), draft ? &*draft : nullptr);
  if (!plan.ok()) throw std::runtime_error(plan.error().text);
  auto session = cli::Session::start(
      *plan, interrupts_, [](const std::string&) {}, WISP_TEST_BIN "/wisp-launch");
  if (!session.ok()) throw std::runtime_error(session.error().text);
  session_ = std::move(session).value();
  auto control = launch::Client::connect(where().run_dir);
  if (!control.ok()) throw std::runtime_error(control.error().text);
  control_ = std::make_unique<launch::Client>(std::move(control).value());
  // Answers do not wait for it; a test that strikes it does.
  await("the speculator", [&] { return ready(StageId::kSpeculator); });
  watched = this;
}

TestRun::~TestRun() {
  watched = nullptr;
  if (session_) session_->end();
}

const cli::RunState& TestRun::state() const {
  // `life` stays for the whole run; a reset replaces all the others.
  if (state_ && state_->life().resets.load(std::memory_order_acquire) == seen_resets_) return *state_;
  auto s = cli::RunState::open(where().run_dir);
  if (!s.ok()) throw std::runtime_error(s.error().text);
  state_ = std::move(s).value();
  seen_resets_ = state_->life().resets.load(std::memory_order_acquire);
  return *state_;
}

std::string TestRun::describe() const {
  std::string text;
  for (const StageId s : shm::kRunningStages) {
    const shm::StageLife& life =
        state_ ? state_->life().stage[shm::index(s)] : state().life().stage[shm::index(s)];
    text += std::string(shm::name_of(s)) + ": epoch " + std::to_string(life.epoch.load()) + ", state " +
            std::to_string(life.state.load()) + ", pid " + std::to_string(life.pid.load()) + "\n";
    for (const std::string& line : launch::post_mortem(state_->desk(s))) text += "  " + line + "\n";
  }
  return text;
}

std::uint32_t TestRun::launcher_pid() const {
  std::uint32_t pid = 0;
  const std::string stat = "/proc/" + std::to_string(this->pid(StageId::kRouter)) + "/status";
  if (FILE* f = std::fopen(stat.c_str(), "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, f) != nullptr) std::sscanf(line, "PPid: %u", &pid);
    std::fclose(f);
  }
  return pid;
}

TestRun::Ask::Ask(TestRun& run, std::string body, std::string target) {
  thread_ = std::thread([this, &run, body = std::move(body), target = std::move(target)] {
    cli::StreamRequest request{run.where().unix_socket, target, body, {}};
    cli::StreamHandlers handlers;
    handlers.event = [this](const std::string& data) {
      seen_.lines.push_back(blank(data));
      ++events_;
    };
    handlers.comment = [this](std::string_view text) {
      if (text.starts_with("wisp ")) seen_.notices.emplace_back(text);
    };
    auto end = cli::stream(request, handlers, {});
    if (end.ok())
      seen_.resumes = end->resumes;
    else
      seen_.error = end.error().text;
    done_ = true;
  });
}

TestRun::Ask::~Ask() {
  if (thread_.joinable()) (void)wait();
}

Seen TestRun::Ask::wait() {
  while (!done_) {
    const std::uint64_t events = events_;
    await("the next event of a stream or its end", [&] { return done_ || events_ != events; });
  }
  thread_.join();
  return seen_;
}

std::unique_ptr<TestRun::Ask> TestRun::ask(const std::string& question, std::uint32_t max_tokens, Kind kind) {
  nlohmann::json body{{"messages", {{{"role", "user"}, {"content", question}}}},
                      {"stream", true},
                      {"max_tokens", max_tokens},
                      {"ignore_eos", kind != Kind::kShort},
                      {"return_token_ids", true},
                      {"stream_options", {{"include_usage", true}}}};
  if (kind == Kind::kTold) {
    body["frequency_penalty"] = 0.7;
    body["repetition_penalty"] = 1.3;
    body["logprobs"] = true;
    body["top_logprobs"] = kTopLogprobs;
  }
  return std::make_unique<Ask>(*this, body.dump(), "/v1/chat/completions");
}

std::unique_ptr<TestRun::Ask> TestRun::ask_ids(const std::vector<std::uint32_t>& ids,
                                               std::uint32_t max_tokens) {
  nlohmann::json body{{"prompt", ids},
                      {"stream", true},
                      {"max_tokens", max_tokens},
                      {"ignore_eos", true},
                      {"return_token_ids", true}};
  if (logits_) body["write_logits"] = true;
  return std::make_unique<Ask>(*this, body.dump(), "/v1/completions");
}

Seen TestRun::ask_and_wait(const std::string& question, std::uint32_t max_tokens, Kind kind) {
  return ask(question, max_tokens, kind)->wait();
}

void TestRun::call(const std::function<void(proto::LaunchRequest::Builder)>& build) {
  auto answer = control_->call(build);
  if (!answer.ok()) throw std::runtime_error(answer.error().text);
}

std::uint64_t TestRun::steps() const {
  return shm::extra_of<shm::RouterBoard>(&state().desk(StageId::kRouter))
      ->next_step.load(std::memory_order_acquire);
}

void TestRun::gate(std::uint64_t steps) {
  call([&](proto::LaunchRequest::Builder b) { b.setGate(steps); });
}
void TestRun::open_gate() {
  gate(~0ULL);
}

void TestRun::await_gate() {
  await("the step gate to be reached", [&] {
    return steps() >= state().life().gate.load() && state().desk(StageId::kRouter).waits_for.load() ==
                                                        static_cast<std::uint32_t>(shm::WaitFor::kStepGate);
  });
}

void TestRun::arm(StageId s, const std::string& point, std::uint32_t count, std::uint32_t signal) {
  call([&](proto::LaunchRequest::Builder b) {
    auto c = b.initArmCrash();
    c.setStage(std::string(shm::name_of(s)));
    c.setPoint(point);
    c.setCountdown(count);
    c.setSignal(signal);
  });
}

std::uint32_t TestRun::epoch(StageId s) const {
  return state().life().stage[shm::index(s)].epoch.load();
}
std::uint32_t TestRun::pid(StageId s) const {
  return state().life().stage[shm::index(s)].pid.load();
}
bool TestRun::ready(StageId s) const {
  return state().life().stage[shm::index(s)].state.load() ==
         static_cast<std::uint32_t>(shm::StageState::kReady);
}
void TestRun::signal(StageId s, int signal) {
  // A crash point may have ended it meanwhile: pid 0 would be everybody's.
  if (const std::uint32_t one = pid(s); one != 0) ::kill(static_cast<pid_t>(one), signal);
}
void TestRun::await_return(StageId s, std::uint32_t before) {
  await("a stage to come back", [&] { return epoch(s) > before && ready(s); });
}
std::uint64_t TestRun::counter(StageId s, stats::Counter c) const {
  return state().counter(s, c);
}

}  // namespace wisp::crash
