#pragma once
#include <poll.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/function_ref.hpp"
#include "base/result.hpp"
#include "plan/run_plan.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc_ring.hpp"
#include "service/crash_point.hpp"
#include "service/fds.hpp"
#include "shm/desk.hpp"
#include "shm/journal.hpp"
#include "shm/life.hpp"
#include "slab/slot_word.hpp"

namespace wisp::service {

/// What the stages of one process share beside the regions: the ways to the launcher and the armed crash
/// points. An Attachment made by hand (tests) has none, and then sleeps on bells alone.
struct ProcessPart {
  int control = -1;
  int ready = -1;
  int lifeline = -1;
  std::mutex control_mutex;  ///< one thread at a time takes packets
  std::array<std::atomic<detail::Armed*>, shm::kStages> armed{};
};

/// The regions as one process sees them. Folded stages share one Attachment, and so one mapping of each
/// region. A pointer to a region that this process does not own is to memory that the MMU makes read-only.
struct Attachment {
  plan::RunPlan plan;
  const shm::Life* life = nullptr;
  std::array<shm::Desk*, shm::kStages> desk{};
  std::array<ring::Doorbell, shm::kStages> bell{};
  slab::SlabDir* slab_dir = nullptr;
  std::byte* slab = nullptr;
  std::byte* dense = nullptr;
  shm::Kv* kv = nullptr;
  shm::Journal* journal = nullptr;
  std::vector<std::shared_ptr<shm::Mapping>> mappings;  ///< owners of the pointers above
  std::shared_ptr<ProcessPart> process;
};

/// What a stage may do with the world around it: its desk, its peers, and the one place where it sleeps.
class StageContext {
 public:
  StageContext(const Attachment& at, shm::StageId id, std::uint32_t epoch);
  ~StageContext();
  StageContext(const StageContext&) = delete;
  StageContext& operator=(const StageContext&) = delete;

  const plan::RunPlan& plan() const { return at_.plan; }
  const shm::Life& life() const { return *at_.life; }
  const Attachment& at() const { return at_; }
  shm::StageId id() const { return id_; }
  std::uint32_t epoch() const { return epoch_; }
  shm::Desk* desk() { return at_.desk[shm::index(id_)]; }
  const shm::Desk* peer(shm::StageId s) const { return at_.desk[shm::index(s)]; }
  const ring::Doorbell& bell(shm::StageId s) const { return at_.bell[shm::index(s)]; }
  std::uint64_t now() const { return shm::engine_now(life()); }

  ring::Producer producer(shm::EdgeId e);
  ring::Consumer consumer(shm::EdgeId e);

  /// Sleeps until `ready()`; names what it waits for in the desk. `extra` descriptors and `timeout_ns` (of
  /// monotonic time, ~0 = none) wake it too. Returns after at most one sleep if neither holds: the caller
  /// looks again. Control messages and the launcher's death are handled inside.
  void sleep(shm::WaitFor why, std::uint64_t detail, FunctionRef<bool()> ready,
             std::vector<pollfd>* extra = nullptr, std::uint64_t timeout_ns = ~0ULL);
  /// Looks for `ready()` for `ns` before the caller sleeps; true as soon as it holds. Waking a thread that
  /// sleeps takes up to tens of microseconds, so who expects work at once looks for it first. Between looks
  /// the core is offered to others: whoever makes the work may need it.
  static bool spin(std::uint64_t ns, FunctionRef<bool()> ready);
  /// Loops on sleep() until `ready()`.
  void wait(shm::WaitFor why, std::uint64_t detail, FunctionRef<bool()> ready);

  /// Handles what the control socket holds (crash points, log level); never blocks. Ends the process when the
  /// launcher is gone.
  void poll_control();

  /// Descriptors that end a sleep: bell, control socket, lifeline. For stages with an event loop of their
  /// own.
  std::array<int, 3> wake_fds() const;
  /// Makes the calling thread the one that dies at this context's crash points. run_stage() does it.
  void bind_thread();
  /// Publishes "parked" around a sleep of an event loop of the stage's own. See sleep().
  void begin_park(shm::WaitFor why, std::uint64_t detail);
  void end_park();

  /// Tells the launcher that this stage answers now.
  void announce_ready();
  /// Tells the launcher why, then exits with status 125: not to be restarted. `why` should name the way out.
  [[noreturn]] void give_up(const Error& why);

 private:
  const Attachment& at_;
  shm::StageId id_;
  std::uint32_t epoch_;
  detail::Armed armed_;
};

/// A stage: a library with poll(). A process is a short main that hosts one or several.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Does some work; false if there was none.
  virtual bool poll() = 0;
  /// Whether there is input; looked at once more between "parked" and sleep.
  virtual bool has_work() = 0;
  /// Sleeps until there may be work. The default parks on the bell; a stage with descriptors of its own
  /// overrides it.
  virtual void sleep(StageContext& ctx);
};

using StageFactory = std::function<Result<std::unique_ptr<Stage>>(StageContext&)>;

/// A stage that a program can host.
struct HostedStage {
  shm::StageId id;
  StageFactory make;
};

/// main() of every stage process: attaches to the inherited regions, makes the stages whose ids the launcher
/// named and runs them, one thread each, until the launcher is gone or ends the process. Returns the exit
/// code.
int host_main(int argc, char** argv, const char* program, const std::vector<HostedStage>& stages);

/// Runs one stage on this thread until `stop` returns true. Rings every peer once first: the predecessor may
/// have died between publishing and ringing.
void run_stage(StageContext& ctx, Stage& stage, const std::function<bool()>& stop);

/// Maps the inherited regions for the stages hosted here. `writable` = ids of those stages. The plan is left
/// empty.
Result<Attachment> attach_inherited(const std::vector<shm::StageId>& writable);
/// Checks the sizes of what is mapped against the plan. Errors: kCorrupt names the region.
Status check_against_plan(const Attachment& at);

}  // namespace wisp::service
