#pragma once
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "plan/run_plan.hpp"
#include "services/cli/http_client.hpp"
#include "services/cli/interrupt.hpp"

namespace wisp::cli {

/// What the launcher says once every stage answers.
struct ReadyLine {
  std::string run_dir;
  std::string unix_socket;
  std::uint32_t port = 0;
};
/// Errors: kInvalid where the line is none.
Result<ReadyLine> parse_ready_line(const std::string& line);

/// A pipeline of our own: `wisp-launch` as a child, which ends when this object does or this process dies.
class Session {
 public:
  using Notice = std::function<void(const std::string& line)>;

  /// Starts `launcher` ("" = wisp-launch beside this program) with `plan` and waits until it is ready. What
  /// happens to stages is told to `notice`, a line each. Errors: kNotFound without a launcher; kUnavailable
  /// with the launcher's own words when it ends early; kInterrupted when `interrupts` came.
  static Result<std::unique_ptr<Session>> start(const plan::RunPlan& plan, const Interrupts& interrupts,
                                                Notice notice, const std::string& launcher = "");
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const ReadyLine& ready() const { return ready_; }
  /// To be watched while waiting for anything: passes the launcher's lines on.
  Watch events();
  /// An Error once the launcher has ended.
  Status check();
  /// Ends the pipeline and waits for it; twice does nothing.
  void end();

 private:
  explicit Session(Notice notice) : notice_(std::move(notice)) {}
  Status spawn(const plan::RunPlan& plan, const std::string& launcher);
  Status await_ready(const Interrupts& interrupts);
  /// Reads what the launcher said; false at its end.
  bool read_lines();
  void take_line(const std::string& line);
  bool reap(bool block);

  Notice notice_;
  ReadyLine ready_;
  bool is_ready_ = false;
  Fd announce_;
  Fd lifeline_;
  pid_t pid_ = 0;
  int status_ = 0;  ///< wait status, once pid_ is 0
  std::string partial_;
  std::string last_words_;
};

}  // namespace wisp::cli
