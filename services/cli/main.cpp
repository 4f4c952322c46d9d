#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>

#include "services/cli/bench.hpp"
#include "services/cli/cache.hpp"
#include "services/cli/commands.hpp"
#include "services/cli/convert.hpp"
#include "services/cli/eval.hpp"
#include "services/cli/inspect.hpp"
#include "services/cli/stripe.hpp"
#include "services/cli/synth.hpp"
#include "services/cli/trace.hpp"
#include "services/cli/verify.hpp"
#include "wisp/kernels/kernels.hpp"

/// `wisp`: the command people type. Holds no logic: each subcommand calls the libraries beneath.
int main(int argc, char** argv) {
  // A closed standard descriptor would be given to the next pipe, and read as if it were stdin.
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) return 1;
  // A file beyond RLIMIT_FSIZE is then an error of write, with a name, and no death without a word.
  std::signal(SIGXFSZ, SIG_IGN);
  if (const std::string wrong = wisp::kernels::isa_refusal(); !wrong.empty()) {
    std::fprintf(stderr, "wisp: %s\n", wrong.c_str());
    return 1;
  }
  CLI::App app{
      "WISP runs Mixture-of-Experts models that are larger than memory by streaming experts from the drive.",
      "wisp"};
  const std::string version = "wisp " WISP_VERSION;
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
  int exit_code = 0;
  wisp::cli::add_run(app, exit_code);
  wisp::cli::add_chat(app, exit_code);
  wisp::cli::add_serve(app, exit_code);
  wisp::cli::add_stat(app, exit_code);
  wisp::cli::add_convert(app, exit_code);
  wisp::cli::add_inspect(app, exit_code);
  wisp::cli::add_eval(app, exit_code);
  wisp::cli::add_stripe(app, exit_code);
  wisp::cli::add_verify(app, exit_code);
  wisp::cli::add_synth(app, exit_code);
  wisp::cli::add_bench(app, exit_code);
  wisp::cli::add_trace(app, exit_code);
  wisp::cli::add_cache(app, exit_code);
  for (CLI::App* command : app.get_subcommands({}))
    if (command->get_version_ptr() == nullptr) command->set_version_flag("--version", version);
  app.footer("wisp COMMAND --help explains a command. Begin with: wisp convert, wisp run.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return exit_code;
}
