#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/client.hpp"
#include "launch/supervisor.hpp"

namespace wisp::launch::test {

/// A plan small enough to be made in a moment.
plan::RunPlan toy_plan();
Topology toy_topology(bool solo = false);

/// A directory of its own for everything with a name, as XDG_RUNTIME_DIR; removed at the end.
class PrivateRuntimeDir {
 public:
  PrivateRuntimeDir();
  ~PrivateRuntimeDir();
  const std::string& path() const { return path_; }
  /// Names in it, without those of dead things.
  std::vector<std::string> entries() const;

 private:
  std::string path_;
};

/// A supervisor in this process over toy stages. Time passes by turns; the watchdog is CTest's.
class ToyRun {
 public:
  explicit ToyRun(plan::RunPlan plan = toy_plan(), Topology topology = toy_topology());
  ~ToyRun();

  Supervisor& operator*() { return *supervisor_; }
  Supervisor* operator->() { return supervisor_.get(); }
  void turn_until(const std::function<bool()>& done);
  void start_and_wait();
  void stop_and_wait();
  /// The death of `s` by `signal`, and the next state of readiness of everybody.
  void kill(shm::StageId s, int signal) const;
  void wait_all_ready();
  bool all_ready() const;

  const shm::StageLife& life(shm::StageId s) const;
  std::uint32_t epoch(shm::StageId s) const { return life(s).epoch.load(); }
  std::uint32_t pid(shm::StageId s) const { return life(s).pid.load(); }
  int count(Event::Kind kind) const;
  /// Calls the launcher as a client would, from another thread.
  Result<Client::Answer> call(const std::function<void(proto::LaunchRequest::Builder)>& build);
  /// Makes progress that the restart policy sees: the toy router commits tokens up to `n`.
  void commit(std::uint64_t n);

  std::vector<Event> events;
  PrivateRuntimeDir runtime;

 private:
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace wisp::launch::test
