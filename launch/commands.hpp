#pragma once
#include <cstdint>
#include <string>

/// What `wisp-launch` does for people and tests. Each returns an exit code and prints its own errors.
namespace wisp::launch {

struct RunCommand {
  int plan_fd = -1;
  int lifeline_fd = -1;  ///< end of file there stops everything; -1 = none
  int announce_fd = 1;
  std::string programs;  ///< directory; empty = beside this program
  std::string
      topologies;  ///< directory; empty = share/wisp/topologies of the installation, or beside this program
};
int run(const RunCommand& command);

int show_status(const std::string& run);
int stop(const std::string& run);
int restart(const std::string& run, const std::string& stage);
/// `gate`: a number of steps, or "open".
int set_gate(const std::string& run, const std::string& gate);
int arm_crash(const std::string& run, const std::string& stage, const std::string& point, std::uint32_t count,
              std::uint32_t signal);

struct DebugCommand {
  std::string run;
  std::string stage;
  bool wait = false;
  std::string replace;
};
int debug(const DebugCommand& command);

/// Becomes `sh -c 'exec COMMAND'` in a stage's place; ends with the launcher as a stage does.
int exec_child(const std::string& command);

/// Directory of this program; file of the installation or of the build tree, in that order.
std::string program_directory();
std::string shared_file(const std::string& installed, const std::string& in_build_tree);

}  // namespace wisp::launch
