#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>

#include "services/cli/commands.hpp"
#include "services/cli/pipeline.hpp"

namespace wisp::cli {

namespace {

/// Lines of stdin, read beside everything else that may happen meanwhile. In a pipe there is no prompt to
/// show.
class LineInput {
 public:
  enum class End { kLine, kEof, kInterrupted };

  explicit LineInput(const StreamWorld& world) : world_(world), tty_(::isatty(STDIN_FILENO) == 1) {}

  bool tty() const { return tty_; }
  /// Waits for a line. Errors: the pipeline is gone.
  Result<End> read(std::string& line) {
    if (tty_) prompt();
    while (true) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos || (eof_ && !buffer_.empty())) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end == std::string::npos ? end : end + 1);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        return End::kLine;
      }
      if (eof_) return End::kEof;
      WISP_ASSIGN(const bool go_on, fill());
      if (!go_on) return End::kInterrupted;
    }
  }

 private:
  static constexpr int kCheckMs = 1000;

  static void prompt() {
    std::fputs("> ", stderr);
    std::fflush(stderr);
  }

  /// One wait. False: Ctrl-C.
  Result<bool> fill() {
    std::vector<pollfd> fds{{STDIN_FILENO, POLLIN, 0}};
    for (const Watch& w : world_.watches) fds.push_back({w.fd(), POLLIN, 0});
    const int n = ::poll(fds.data(), fds.size(), kCheckMs);
    if (n == 0) WISP_TRY(world_.check());
    for (std::size_t i = 0; n > 0 && i < world_.watches.size(); ++i)
      if (fds[i + 1].revents != 0 && !world_.watches[i].readable()) return false;
    if (n <= 0 || fds[0].revents == 0) return true;
    char bytes[4096];
    const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (got > 0)
      buffer_.append(bytes, static_cast<std::size_t>(got));
    else if (got == 0 || (errno != EINTR && errno != EAGAIN))
      eof_ = true;
    return true;
  }

  const StreamWorld& world_;
  bool tty_;
  bool eof_ = false;
  std::string buffer_;
};

struct ChatFlags {
  PipelineFlags pipeline;
  Sampling sampling;
  std::string system;
};

/// The conversation so far, and one turn of it after the other.
class Chat {
 public:
  Chat(const OpenModel& model, const ChatFlags& flags, Pipeline& pipeline, Console& console)
      : flags_(flags), pipeline_(pipeline), console_(console) {
    question_.model = model.manifest.name;
    question_.sampling = flags.sampling;
    clear();
  }

  void clear() {
    question_.messages = nlohmann::ordered_json::array();
    if (!flags_.system.empty()) add("system", flags_.system);
  }

  /// Asks one more thing. Errors leave the conversation as it was before.
  Status turn(const std::string& line, const StreamWorld& world) {
    const auto before = question_.messages;
    add("user", line);
    const RunFigures figures = pipeline_.figures();
    auto answer = ask(
        question_, pipeline_.session().ready().unix_socket, world,
        [&](const std::string& text) { console_.answer(text); },
        [&](std::string_view text) { show_comment(console_, text); });
    console_.end_answer();
    if (!answer.ok()) {
      question_.messages = before;
      return std::move(answer).error();
    }
    add("assistant", answer->text);
    explain_end(console_, *answer, flags_.sampling, pipeline_.plan());
    if (::isatty(STDERR_FILENO) == 1) print_summary(*answer, pipeline_.figures().since(figures));
    return {};
  }

 private:
  void add(const char* role, const std::string& content) {
    question_.messages.push_back({{"role", role}, {"content", content}});
  }

  void print_summary(const Answer& a, const RunFigures& f) {
    char text[160];
    const double rate = f.hit_rate().value_or(0.0);
    std::snprintf(text, sizeof text,
                  "  [first token %.2f s, %.1f tokens/s, %.1f %% of experts found in RAM, %s read]\n",
                  a.ttft_s, a.decode_tok_s, 100.0 * rate, plan::format_size(f.device_bytes_read).c_str());
    console_.print(text);
  }

  const ChatFlags& flags_;
  Pipeline& pipeline_;
  Console& console_;
  Question question_;
};

/// Lines until /quit or the end of input. Returns the exit code.
Result<int> converse(Chat& chat, LineInput& input, const StreamWorld& world, Interrupts& interrupts,
                     Console& console) {
  int code = 0;
  std::string line;
  while (true) {
    WISP_ASSIGN(const LineInput::End end, input.read(line));
    if (end == LineInput::End::kEof) return code;
    if (end == LineInput::End::kInterrupted) {
      // Nobody is there to type /quit into a pipe.
      if (!input.tty()) return 130;
      interrupts.rearm();
      console.print("\n(/quit or Ctrl-D ends the chat)\n");
      continue;
    }
    if (line == "/quit" || line == "/exit") return code;
    if (line == "/clear") {
      chat.clear();
      continue;
    }
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (auto asked = chat.turn(line, world); !asked.ok()) {
      code = report("chat", asked.error());
      WISP_TRY(world.check());
    }
    if (!console.stdout_ok()) return io_error("the answer could not be written to stdout");
    interrupts.rearm();
  }
}

Result<int> run(const ChatFlags& f) {
  Console console;
  WISP_ASSIGN(Interrupts interrupts, Interrupts::install());
  WISP_ASSIGN(const OpenModel model, open_model(f.pipeline.options.model));
  if (!model.has_tokenizer)
    return invalid(f.pipeline.options.model +
                   " has neither tokenizer.json nor tiktoken.model; `wisp run --ids` works without one");
  WISP_ASSIGN(const std::unique_ptr<Pipeline> pipeline,
              Pipeline::start(model, f.pipeline, console, interrupts));
  const StreamWorld world = pipeline->world();
  LineInput input(world);
  if (input.tty()) console.print("Ctrl-C stops an answer; /clear forgets the conversation; /quit ends.\n");
  Chat chat(model, f, *pipeline, console);
  auto code = converse(chat, input, world, interrupts, console);
  if (input.tty()) console.print("\n");
  pipeline->session().end();
  return code;
}

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  CLI::App* c = app.add_subcommand("chat", "Talk with a model");
  const auto f = std::make_shared<ChatFlags>();
  add_pipeline_flags(*c, f->pipeline);
  c->add_option("--system", f->system, "Instructions that stand before the conversation");
  add_sampling_flags(*c, f->sampling);
  c->footer(
      "One line is one message; in a pipe, answers alone go to stdout. Ctrl-C stops an answer, twice kills.");
  c->callback([f, &exit_code] {
    f->pipeline.options.port = -1;
    auto code = run(*f);
    exit_code = code.ok() ? *code : report("chat", code.error());
  });
}

}  // namespace wisp::cli
