#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/client.hpp"
#include "services/cli/run_state.hpp"
#include "services/cli/session.hpp"

namespace wisp::crash {

/// A checkpoint of the test data (a folder below it, oracles' answers left out), converted once per process
/// into a temporary folder that goes with it.
const std::string& model_of(const std::string& checkpoint);
inline const std::string& bundled_model() {
  return model_of("pocket-dictionary");
}

/// What a client saw: the `data:` lines with `id` and `created` blanked, and what the connection went
/// through.
struct Seen {
  std::vector<std::string> lines;
  std::vector<std::string> notices;
  std::uint32_t resumes = 0;
  std::string error;
  bool operator==(const Seen& o) const { return lines == o.lines && error == o.error; }
};

struct RunSettings {
  std::uint64_t slots = 64;  ///< of 256: a quarter, so that every token misses
  std::uint32_t prompt_chunk = 16;
  std::uint32_t threads = 1;
  std::string topology = "full";
  std::string io = "auto";
  std::string kv = "f32";
  std::string prefill = "absorbed";
  std::string speculate = "off";  ///< tests that count steps want one token from each
  std::string draft;              ///< a checkpoint of the test data, as model_of() takes it; "" = none
  std::string logits_dir;         ///< "" = none; else ask_ids leaves a file of logits there
  std::string model;              ///< "" = the bundled one
};

/// The same with drafts in every step that decodes: three, of look-up or the bundled draft model.
RunSettings with_drafts(RunSettings settings = {});

/// A pipeline under test.
class TestRun {
 public:
  explicit TestRun(const RunSettings& settings = {});
  ~TestRun();

  /// Streams one request on a thread of its own.
  class Ask {
   public:
    Ask(TestRun& run, std::string body, std::string target);
    ~Ask();
    /// Waits for the end; the watchdog strikes when nothing comes any more.
    Seen wait();
    bool done() const { return done_; }

   private:
    std::atomic<bool> done_{false};
    std::atomic<std::uint64_t> events_{0};
    Seen seen_;
    std::thread thread_;
  };
  /// Of an answer: as far as it goes, on past the end-of-text token, or that under penalties and with
  /// log-probabilities of each token.
  enum class Kind { kShort, kFull, kTold };
  /// A chat.
  std::unique_ptr<Ask> ask(const std::string& question, std::uint32_t max_tokens, Kind kind = Kind::kShort);
  Seen ask_and_wait(const std::string& question, std::uint32_t max_tokens, Kind kind = Kind::kShort);
  /// The same for a prompt of ids, on past the end-of-text token: models without a tokenizer.
  std::unique_ptr<Ask> ask_ids(const std::vector<std::uint32_t>& ids, std::uint32_t max_tokens);

  // the step gate
  /// Steps published since the regions were made.
  std::uint64_t steps() const;
  /// No step with a number from `steps` on is published.
  void gate(std::uint64_t steps);
  void open_gate();
  /// Waits until the router stands before the gate with work to do: no step is under way.
  void await_gate();

  void arm(shm::StageId s, const std::string& point, std::uint32_t count = 1, std::uint32_t signal = 9);
  std::uint32_t epoch(shm::StageId s) const;
  std::uint32_t pid(shm::StageId s) const;
  bool ready(shm::StageId s) const;
  /// Sends `signal` to the stage's process.
  void signal(shm::StageId s, int signal);
  /// Waits until the stage has an epoch after `before` and is ready.
  void await_return(shm::StageId s, std::uint32_t before);
  std::uint64_t counter(shm::StageId s, stats::Counter c) const;
  /// Steps in which drafts were tried since the regions were made.
  std::uint64_t draft_steps() const { return counter(shm::StageId::kRouter, stats::Counter::kDraftSteps); }
  std::uint32_t resets() const { return state().life().resets.load(); }

  const cli::ReadyLine& where() const { return session_->ready(); }
  /// The regions, mapped anew if a reset replaced them.
  const cli::RunState& state() const;
  void end() { session_->end(); }
  /// What each stage waits for and did last, for the watchdog.
  std::string describe() const;
  std::uint32_t launcher_pid() const;

 private:
  void call(const std::function<void(proto::LaunchRequest::Builder)>& build);

  cli::Interrupts& interrupts_;
  const bool logits_;
  std::unique_ptr<cli::Session> session_;
  mutable std::optional<cli::RunState> state_;
  mutable std::uint32_t seen_resets_ = 0;
  std::unique_ptr<launch::Client> control_;
};

/// Waits for a condition; after `seconds` without it the process aborts naming `what` and the state of the
/// pipeline: a watchdog, not a limit.
void await(const char* what, const std::function<bool()>& condition, int seconds = 120);

}  // namespace wisp::crash
