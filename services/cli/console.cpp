#include "services/cli/console.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string_view>

namespace wisp::cli {

Console::Console()
    : stderr_tty_(::isatty(STDERR_FILENO) == 1), both_tty_(stderr_tty_ && ::isatty(STDOUT_FILENO) == 1) {}

void Console::clear() {
  if (progress_shown_) std::fputs("\r\x1b[K", stderr);
  progress_shown_ = false;
  // A remark in mid-answer gets a line of its own where both share a screen.
  if (both_tty_ && in_line_) std::fputc('\n', stderr);
}

void Console::notice(const std::string& line) {
  clear();
  std::fprintf(stderr, "wisp: %s\n", line.c_str());
}

void Console::print(const std::string& lines) {
  clear();
  std::fputs(lines.c_str(), stderr);
}

void Console::progress(const std::string& line) {
  if (line == last_progress_ || in_line_) return;
  last_progress_ = line;
  std::fprintf(stderr, stderr_tty_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
  std::fflush(stderr);
  progress_shown_ = stderr_tty_;
}

void Console::answer(const std::string& text) {
  if (text.empty()) return;
  if (progress_shown_) std::fputs("\r\x1b[K", stderr);
  progress_shown_ = false;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) stdout_ok_ = false;
  in_line_ = text.back() != '\n';
}

void Console::end_answer() {
  if (in_line_) answer("\n");
  in_line_ = false;
}

std::string shell_word(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_./-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace wisp::cli
