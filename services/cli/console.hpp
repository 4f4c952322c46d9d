#pragma once
#include <string>

namespace wisp::cli {

/// The two outputs of a command: stdout carries the answer alone, stderr everything that is said about it. On
/// a terminal a progress line is rewritten in place and taken away before anything else is printed.
class Console {
 public:
  Console();

  /// A line on stderr, with "wisp: " before it.
  void notice(const std::string& line);
  /// Several lines on stderr, as they are.
  void print(const std::string& lines);
  /// How far something is.
  void progress(const std::string& line);
  /// A piece of the answer, on stdout, at once.
  void answer(const std::string& text);
  /// Ends the answer's last line if it has begun one.
  void end_answer();
  /// Whether stdout took everything (a full disk, a closed pipe).
  bool stdout_ok() const { return stdout_ok_; }

 private:
  void clear();

  bool stderr_tty_;
  bool both_tty_;
  bool progress_shown_ = false;
  bool in_line_ = false;
  bool stdout_ok_ = true;
  std::string last_progress_;
};

/// A word for a shell, quoted where it has to be.
std::string shell_word(const std::string& text);

}  // namespace wisp::cli
