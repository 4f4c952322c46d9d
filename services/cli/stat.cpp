#include <poll.h>
#include <unistd.h>

#include <memory>

#include "service/live_runs.hpp"
#include "services/cli/commands.hpp"
#include "services/cli/interrupt.hpp"
#include "services/cli/pipeline.hpp"
#include "services/cli/stat_view.hpp"

namespace wisp::cli {

namespace {

constexpr int kWatchMs = 1000;

struct StatFlags {
  std::string run;
  bool watch = false;
  bool json = false;
};

Status show(const StatFlags& f) {
  WISP_ASSIGN(const std::string run_dir, service::find_run(f.run));
  WISP_ASSIGN(RunState state, RunState::open(run_dir));
  const bool screen = f.watch && !f.json && ::isatty(STDOUT_FILENO) == 1;
  WISP_ASSIGN(Interrupts interrupts, Interrupts::install());
  while (true) {
    const auto stat = stat_json(state);
    const std::string text = f.json ? stat.dump() + "\n" : stat_text(stat);
    // Home, text, clear what an earlier, longer view left below.
    std::fputs(((screen ? "\x1b[H\x1b[2J" : "") + text).c_str(), stdout);
    if (std::fflush(stdout) != 0) return io_error("stdout is gone");
    if (!f.watch) return {};
    pollfd fd{interrupts.fd(), POLLIN, 0};
    ::poll(&fd, 1, kWatchMs);
    if (interrupts.came()) return {};
    // Asked again each time: after a reset of the run the regions are others. A held launcher is no reason to
    // stop looking at what is mapped.
    if (auto again = RunState::open(run_dir); again.ok())
      state = std::move(*again);
    else if (::access((run_dir + "/control").c_str(), F_OK) != 0)
      return unavailable("the pipeline has ended");
  }
}

}  // namespace

void add_stat(CLI::App& app, int& exit_code) {
  CLI::App* c = app.add_subcommand("stat", "Look into a running pipeline");
  const auto f = std::make_shared<StatFlags>();
  c->add_option("--run", f->run, "Run folder (default: the one that runs)");
  c->add_flag("--watch", f->watch, "Show it again every second, until Ctrl-C");
  c->add_flag("--json", f->json, "One JSON object a line");
  c->footer("Reads shared memory alone: stages may be stopped, dead or held by a debugger.");
  c->callback([f, &exit_code] {
    auto done = show(*f);
    exit_code = done.ok() ? 0 : report("stat", done.error());
  });
}

}  // namespace wisp::cli
