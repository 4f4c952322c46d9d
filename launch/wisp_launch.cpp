#include <CLI/CLI.hpp>
#include <cstdio>

#include "launch/commands.hpp"

namespace {

/// `--run` of every command that talks to a live run.
void add_run(CLI::App* command, std::string& run) {
  command->add_option("--run", run, "Directory or name of the run (default: the only live one)");
}

}  // namespace

int main(int argc, char** argv) {
  namespace launch = wisp::launch;
  CLI::App app{
      "Starts the stages of WISP, keeps them running and lets you look at them. `wisp run` and `wisp serve` "
      "use it."};
  app.set_version_flag("--version", std::string("wisp-launch ") + WISP_VERSION);
  app.require_subcommand(1);

  launch::RunCommand run;
  auto* run_command = app.add_subcommand("run", "Start a run (a plan comes from `wisp`)");
  run_command->add_option("--plan-fd", run.plan_fd, "Descriptor that holds the plan")->required();
  run_command->add_option("--lifeline-fd", run.lifeline_fd,
                          "Stop everything at end of file of this descriptor");
  run_command->add_option("--announce-fd", run.announce_fd, "Events go here, a line of JSON each");
  run_command->add_option("--programs", run.programs,
                          "Directory of the stages' programs (default: beside this one)");
  run_command->add_option("--topologies", run.topologies, "Directory of the topologies");

  std::string where;
  std::string stage;
  std::string point;
  std::string gate;
  std::uint32_t count = 1;
  std::uint32_t signal = 9;
  launch::DebugCommand debug;
  auto* status_command = app.add_subcommand("status", "Show the stages of a live run");
  auto* stop_command = app.add_subcommand("stop", "Stop a live run and wait for its end");
  auto* restart_command = app.add_subcommand("restart", "Start a stage anew; nothing is lost");
  restart_command->add_option("stage", stage, "gateway, router, loader or compute")->required();
  auto* gate_command = app.add_subcommand("gate", "Let the router publish steps below a number only");
  gate_command->add_option("steps", gate, "Number of steps, or open")->required();
  auto* crash_command = app.add_subcommand("crash", "Let a stage die at a crash point");
  crash_command->add_option("stage", stage, "Stage")->required();
  crash_command->add_option("point", point, "Name of the point, e.g. after_seq")->required();
  crash_command->add_option("--count", count, "At the so-manieth time it gets there");
  crash_command->add_option("--signal", signal, "By this signal");
  auto* debug_command = app.add_subcommand("debug", "Open gdb on a stage; deadlines stand still meanwhile");
  debug_command->add_option("stage", debug.stage, "Stage")->required();
  debug_command->add_flag("--wait", debug.wait, "Start it anew, stopped before it attaches");
  debug_command->add_option("--replace", debug.replace,
                            "Start this shell command in its place, e.g. 'gdb --args ./wisp-compute'");
  for (CLI::App* c :
       {status_command, stop_command, restart_command, gate_command, crash_command, debug_command})
    add_run(c, where);
  std::string command_line;
  auto* exec_command = app.add_subcommand("exec-child", "")->group("");
  exec_command->add_option("command", command_line)->required();

  CLI11_PARSE(app, argc, argv);
  if (*run_command) return launch::run(run);
  if (*status_command) return launch::show_status(where);
  if (*stop_command) return launch::stop(where);
  if (*restart_command) return launch::restart(where, stage);
  if (*gate_command) return launch::set_gate(where, gate);
  if (*crash_command) return launch::arm_crash(where, stage, point, count, signal);
  if (*exec_command) return launch::exec_child(command_line);
  debug.run = where;
  return launch::debug(debug);
}
