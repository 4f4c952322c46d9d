#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "plan/run_plan.hpp"
#include "shm/desk.hpp"
#include "shm/journal.hpp"
#include "shm/life.hpp"
#include "slab/slot_word.hpp"

namespace wisp::cli {

/// A running pipeline as anyone may see it: its regions mapped read-only. Needs the launcher once, to hand
/// out the descriptors; after that no process of the run has to do anything, be it stopped or dead.
class RunState {
 public:
  /// Errors: kUnavailable where no launcher answers in `run_dir`.
  static Result<RunState> open(const std::string& run_dir);

  const plan::RunPlan& plan() const { return plan_; }
  const std::array<std::uint32_t, shm::kStages>& pids() const { return pids_; }
  std::uint32_t port() const { return port_; }
  const shm::Life& life() const { return *static_cast<const shm::Life*>(life_.data()); }
  const shm::Desk& desk(shm::StageId s) const {
    return *static_cast<const shm::Desk*>(desks_[shm::index(s)].data());
  }
  const slab::SlabDir& slab_dir() const { return *static_cast<const slab::SlabDir*>(slab_dir_.data()); }
  const shm::Journal& journal() const { return *static_cast<const shm::Journal*>(journal_.data()); }

  std::uint64_t counter(shm::StageId s, stats::Counter c) const { return desk(s).get(c); }
  /// Whether the loader has counted every touch that compute has sent. It learns of hits late: a touch of
  /// hits alone wakes nobody.
  bool touches_counted() const;
  /// Why the run has been given up; nothing where it has not.
  std::optional<std::string> given_up() const;

 private:
  Status take(const std::string& name, int fd);
  Status check() const;

  plan::RunPlan plan_;
  std::array<std::uint32_t, shm::kStages> pids_{};
  std::uint32_t port_ = 0;
  shm::Mapping life_;
  std::array<shm::Mapping, shm::kStages> desks_;
  shm::Mapping slab_dir_;
  shm::Mapping journal_;
};

}  // namespace wisp::cli
