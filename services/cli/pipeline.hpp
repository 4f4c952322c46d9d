#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/manifest.hpp"
#include "plan/run_plan.hpp"
#include "services/cli/answer.hpp"
#include "services/cli/console.hpp"
#include "services/cli/draft_cache.hpp"
#include "services/cli/interrupt.hpp"
#include "services/cli/recording.hpp"
#include "services/cli/session.hpp"
#include "services/cli/table.hpp"

namespace wisp::cli {

/// Flags that `run`, `chat` and `serve` share.
struct PipelineFlags {
  plan::RunOptions options;
  std::string ram;
  std::string experts_ram;
  std::string trace;                     ///< file for a routing trace, "" = none
  std::string trace_option = "--trace";  ///< what it was given with
  std::string draft;                     ///< folder of a draft model, converted or not, "" = none
  std::string draft_log;                 ///< file for the decisions about drafts, "" = none
  bool no_learned_cache = false;
  bool no_prefetch = false;
  bool no_drive_probe = false;
  bool no_check = false;
  bool verbose = false;
};
void add_pipeline_flags(CLI::App& command, PipelineFlags& flags);
void add_sampling_flags(CLI::App& command, Sampling& sampling);

/// A converted folder. Errors: a Hugging Face folder is answered with the command that converts it.
struct OpenModel {
  model::Manifest manifest;
  bool has_tokenizer = false;
};
Result<OpenModel> open_model(const std::string& folder);

/// The folders of the model, its stripes, its draft and of conversions of drafts: nothing is to be written
/// there.
std::vector<std::string> folders_read(const PipelineFlags& flags);

/// A model, its plan and the processes that run it, for the length of one command.
class Pipeline {
 public:
  /// Plans and starts; says on `console` what it takes. A draft that is not converted yet is, before that.
  /// Errors: those of open_model, draft_folder, make_plan and Session.
  static Result<std::unique_ptr<Pipeline>> start(const OpenModel& model, const PipelineFlags& flags,
                                                 Console& console, Interrupts& interrupts);

  const plan::RunPlan& plan() const { return plan_; }
  Session& session() { return *session_; }
  /// What a request watches: Ctrl-C, the launcher's lines, its death, a stage given up.
  StreamWorld world();
  /// Waits, for a second or two at most, until the loader has counted and recorded all that the answers so
  /// far have asked for: touches of experts that are resident come to it late.
  void settle() const;
  /// Figures so far; the plan's numbers alone where the run does not answer any more.
  RunFigures figures() const;

 private:
  Pipeline(Console& console, Interrupts& interrupts) : console_(console), interrupts_(interrupts) {}
  Status check();

  HeldDraft draft_;
  plan::RunPlan plan_;
  Console& console_;
  Interrupts& interrupts_;
  Recording recording_;
  std::unique_ptr<Session> session_;
};

/// Shows a remark of the gateway: "prompt 512/2048" as progress, "wisp ..." as a notice.
void show_comment(Console& console, std::string_view text);
/// Where the answer was cut, says so and names the flag.
void explain_end(Console& console, const Answer& answer, const Sampling& sampling, const plan::RunPlan& plan);
/// "wisp run: ..." on stderr; returns the exit code: 130 where Ctrl-C was the reason, else 1.
int report(const char* command, const Error& error);

}  // namespace wisp::cli
