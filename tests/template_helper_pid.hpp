#pragma once
#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace wisp::test {

/// The template helper that is a child of process `parent`; -1 where none runs.
inline pid_t template_helper_of(pid_t parent) {
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(parent) + "/task", error)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      std::ifstream file("/proc/" + std::to_string(child) + "/cmdline", std::ios::binary);
      const std::string command((std::istreambuf_iterator<char>(file)), {});
      if (command.find("template_helper.py") != std::string::npos) return child;
    }
  }
  return -1;
}

}  // namespace wisp::test
