#include <memory>
#include <utility>

#include "services/cli/commands.hpp"
#include "services/cli/ids.hpp"
#include "services/cli/logits_file.hpp"
#include "services/cli/pipeline.hpp"

namespace wisp::cli {

namespace {

struct RunFlags {
  PipelineFlags pipeline;
  Sampling sampling;
  std::string prompt;
  std::vector<std::uint32_t> ids;
  bool raw = false;
  std::string logits;
  bool json = false;
};

Result<Question> question(const RunFlags& f, const OpenModel& model) {
  if (f.ids.empty() && !model.has_tokenizer)
    return invalid(
        f.pipeline.options.model +
        " has neither tokenizer.json nor tiktoken.model, so text cannot be asked; give --ids 1,2,3");
  try {
    (void)nlohmann::json(f.prompt).dump();
  } catch (const nlohmann::json::exception& e) {
    return invalid(std::string("the prompt of -p is not UTF-8: ") + e.what());
  }
  for (const std::uint32_t id : f.ids)
    if (const std::uint32_t vocab = model.manifest.spec.vocab; id >= vocab)
      return invalid("--ids: the model has no id " + std::to_string(id) + ", only 0 to " +
                     std::to_string(vocab - 1));
  Question q;
  q.model = model.manifest.name;
  q.sampling = f.sampling;
  q.write_logits = !f.logits.empty();
  if (!f.ids.empty())
    q.ids = f.ids;
  else if (f.raw)
    q.text = f.prompt;
  else
    q.messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", f.prompt}}});
  return q;
}

/// Everything after the flags. Returns the exit code.
Result<int> run(RunFlags& f) {
  Console console;
  WISP_ASSIGN(Interrupts interrupts, Interrupts::install());
  WISP_ASSIGN(const OpenModel model, open_model(f.pipeline.options.model));
  WISP_ASSIGN(const Question q, question(f, model));
  LogitsFile logits;
  if (!f.logits.empty()) {
    WISP_ASSIGN(logits, LogitsFile::create(f.logits, folders_read(f.pipeline)));
    f.pipeline.options.logits_dir = logits.folder();
  }
  WISP_ASSIGN(const std::unique_ptr<Pipeline> pipeline,
              Pipeline::start(model, f.pipeline, console, interrupts));
  WISP_ASSIGN(const Answer answer, ask(
                                       q, pipeline->session().ready().unix_socket, pipeline->world(),
                                       [&](const std::string& text) { console.answer(text); },
                                       [&](std::string_view text) { show_comment(console, text); }));
  if (!model.has_tokenizer) console.answer(join_ids(answer.token_ids));
  console.end_answer();
  pipeline->settle();
  const RunFigures figures = pipeline->figures();
  pipeline->session().end();
  explain_end(console, answer, f.sampling, pipeline->plan());
  console.print("\n" + table(answer, figures));
  if (!f.logits.empty()) WISP_TRY(logits.keep(answer.request));
  if (f.json) console.answer(json_line(answer, figures) + "\n");
  if (figures.traces_lost != 0)
    return io_error(f.pipeline.trace + ": the trace ends before the answer does; the reason is told above");
  if (!console.stdout_ok()) return io_error("the answer could not be written to stdout");
  return answer.finish_reason == "cancelled" ? 130 : 0;
}

void add_answer(CLI::App& app, int& exit_code, bool record) {
  CLI::App* c = record ? app.add_subcommand("record", "Answer one prompt and record which experts are chosen")
                       : app.add_subcommand("run", "Answer one prompt");
  const auto f = std::make_shared<RunFlags>();
  add_pipeline_flags(*c, f->pipeline);
  if (record) {
    c->add_option("--out", f->pipeline.trace, "The trace to write")->required();
    f->pipeline.trace_option = "--out";
  }
  CLI::Option* prompt = c->add_option("-p,--prompt", f->prompt, "What to ask");
  CLI::Option* ids = c->add_option_function<std::string>(
                          "--ids",
                          [f](const std::string& text) {
                            auto read = read_ids(text);
                            if (!read)
                              throw CLI::ValidationError("--ids", "not ids like 1,2,3: \"" + text + "\"");
                            f->ids = std::move(*read);
                          },
                          "The prompt as token ids: 1,2,3")
                         ->excludes(prompt);
  c->add_flag("--raw", f->raw, "Continue the text as it is, without the model's chat form");
  c->add_option("--logits", f->logits, "Write the logits of each step to this file (raw float32 rows)");
  c->add_flag("--json", f->json, "Print the answer and its figures as one JSON line at the end");
  add_sampling_flags(*c, f->sampling);
  c->footer(
      "The answer goes to stdout, everything else to stderr. Ctrl-C ends the answer, twice kills.\n"
      "Exit status: 0, 1 after an error, 2 for wrong flags, 130 after Ctrl-C.");
  c->callback([f, prompt, ids, &exit_code, name = record ? "trace record" : "run"] {
    if (prompt->empty() && ids->empty()) throw CLI::RequiredError("-p/--prompt (or --ids)");
    f->pipeline.options.port = -1;
    auto code = run(*f);
    exit_code = code.ok() ? *code : report(name, code.error());
  });
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  add_answer(app, exit_code, false);
}

void add_trace_record(CLI::App& trace, int& exit_code) {
  add_answer(trace, exit_code, true);
}

}  // namespace wisp::cli
