#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/regions.hpp"
#include "launch/restart_policy.hpp"
#include "launch/run_dir.hpp"
#include "launch/spawn.hpp"
#include "launch/topology.hpp"
#include "launch/watch.hpp"
#include "proto/codec.hpp"

namespace wisp::launch {

/// What the launcher tells its parent; one JSON line each.
struct Event {
  enum class Kind { kAllReady, kStageDied, kStageReady, kGivenUp, kReset };
  Kind kind = Kind::kAllReady;
  std::string stage = {};
  int signal = 0;  ///< of a death; 0 = it exited
  int status = 0;  ///< exit status
  bool restarting = false;
  std::string why = {};
  std::string run_dir = {};  ///< kAllReady, as the two below
  std::uint16_t port = 0;
  std::string unix_socket = {};
};
std::string to_json(const Event& event);

struct SupervisorOptions {
  plan::RunPlan plan;
  Topology topology;
  std::function<std::string(const std::string& program)> find_program;
  std::string launcher_program;  ///< this program's own path: starts a user's command in a stage's place
  std::string gdb_script;
  std::function<void(const Event&)> on_event;
};

/// Where a process of the topology is in its life. Every change goes through Supervisor::enter().
enum class Phase {
  kDown,      ///< no process, and none is due (before the start, during a reset, while stopping)
  kWaiting,   ///< no process; one is started when its pause is over and its loader epoch may begin
  kStarting,  ///< a process runs, not all of its stages are ready
  kReady,
  kGivenUp,  ///< no process, and none is started unless somebody asks
};

/// What the run as a whole does.
enum class Mode { kRunning, kResetting, kStopping, kStopped };

/// Starts the processes of a run and keeps them running. Owns all shared memory; reads none of it to decide,
/// but for the counters of progress. One thread, the one that made it, calls everything: the parent-death
/// signal of the stages is tied to it.
class Supervisor {
 public:
  /// Makes the run directory, sockets and regions; starts nothing. Errors: those of their parts, and
  /// kNotFound for a program that is not there.
  static Result<std::unique_ptr<Supervisor>> create(SupervisorOptions options);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Marks every process to be started; turn() does it.
  void start();
  /// Handles what happens within `timeout_ms`. False once everything is stopped and gone.
  bool turn(int timeout_ms);
  /// TERM and CONT to every stage, KILL after 5 s. turn() goes on until all are reaped.
  void stop();

  Poller& poller() { return poller_; }
  const Regions& regions() const { return regions_; }
  const plan::RunPlan& plan() const { return options_.plan; }
  Mode mode() const { return mode_; }
  /// Whether a process was given up before all were ready for the first time. Such a run stops by itself.
  bool failed_to_start() const { return failed_to_start_; }

 private:
  /// How the next start of a process differs from an ordinary one.
  struct StartMode {
    bool wait = false;
    std::string replace;         ///< shell command; empty = the program itself
    std::array<Fd, 3> standard;  ///< terminal of whoever asked
    int reply_to = -1;           ///< client that waits for the process to exist
  };
  struct Process {
    ProcessSpec spec;
    RestartPolicy policy;
    Phase phase = Phase::kDown;
    Child child;
    Fd control;
    Fd ready;
    std::array<bool, shm::kStages> stage_ready{};
    std::uint64_t due_ns = 0;
    bool by_hand = false;   ///< its next death was asked for and is not counted
    bool replaced = false;  ///< the child is a user's command; the stage is somewhere beneath it
    std::string failure;    ///< what it said before it left
    Progress last;
    StartMode next;

    /// Whether the run goes on without it.
    bool optional() const { return std::all_of(spec.stages.begin(), spec.stages.end(), shm::is_optional); }
  };
  struct Tombstone {
    std::uint32_t epoch;
    Fd read_end;
  };
  struct Client {
    Fd socket;
  };

  explicit Supervisor(SupervisorOptions options);
  Status open_sockets();
  Status check_programs() const;
  Status watch_signals();

  // supervisor.cpp: the state machine
  void enter(Process& p, Phase phase);
  bool awaited(const Process& p) const;
  void announce_when_ready();
  void set_stage_states(const Process& p, shm::StageState state);
  void advance();
  void start_if_due(Process& p);
  bool may_begin(const Process& p) const;
  Status start_process(Process& p);
  SpawnRequest spawn_request(Process& p) const;
  Status grant_pipes(Process& p, SpawnRequest& request, Fd& ready_end, Fd& control_end, Fd& tombstone_end);
  void begin_epoch(Process& p);
  Status configure(Process& p);
  void watch_child(Process& p);
  void on_ready(Process& p);
  void on_stage_message(Process& p);
  int next_timeout(int timeout_ms) const;
  Process* hosting(shm::StageId s);
  std::string stages_of(const Process& p) const;
  std::uint32_t epoch_of(const Process& p) const;

  // deaths.cpp: what follows from a death
  void on_exit(Process& p);
  void record_death(Process& p, int wait_status);
  void decide(Process& p, int wait_status);
  void give_up(Process& p, const std::string& why);
  bool progressed(Process& p, int wait_status);
  void begin_reset(const Process& culprit, int wait_status);
  void finish_reset();
  void finish_stop();
  void add_tombstone(std::uint32_t epoch, Fd read_end);
  void on_tombstone(std::uint32_t epoch);
  bool any_child() const;
  void kill_all(int signal);

  // upkeep.cpp: what the launcher looks at now and then
  void look_at_processes();
  void hold_clock(bool held);
  void measure_memory();
  void upkeep();

  // requests.cpp: the control socket
  void on_connect();
  void on_request(int client);
  void drop_client(int client);
  void answer(int client, proto::Packet& packet);
  void fill_status(proto::LaunchReply::Builder reply) const;
  void send_reply(int client, capnp::MessageBuilder& message, const std::vector<int>& descriptors = {});
  void reply_text(int client, bool ok, const std::string& text);
  Status restart_by_hand(const std::string& stage);
  Status arm_crash(proto::LaunchRequest::ArmCrash::Reader request);
  void debug(int client, proto::LaunchRequest::Debug::Reader request, std::vector<Fd> descriptors);
  void set_gate(std::uint64_t gate);

  SupervisorOptions options_;
  RunDir dir_;
  TcpListener tcp_;
  Fd http_;
  Fd control_;
  Fd logits_dir_;
  Fd child_signal_;
  Pipe lifeline_;
  Regions regions_;
  Poller poller_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::list<Tombstone> tombstones_;
  std::vector<Client> clients_;
  Mode mode_ = Mode::kRunning;
  bool announced_ = false;
  bool failed_to_start_ = false;
  std::uint64_t reset_due_ns_ = 0;
  std::uint64_t kill_due_ns_ = 0;
  std::uint64_t look_due_ns_ = 0;
  std::uint64_t memory_due_ns_ = 0;
};

/// Lines about a dead stage for the log: its status row and its last flight-recorder events. Reads the desk
/// as it was left; for people, decides nothing.
std::vector<std::string> post_mortem(const shm::Desk& desk);

}  // namespace wisp::launch
