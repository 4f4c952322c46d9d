#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "plan/run_plan.hpp"
#include "shm/desk.hpp"
#include "shm/journal.hpp"
#include "shm/life.hpp"

namespace wisp::launch {

/// A descriptor of the launcher and the number that a stage finds it under.
struct Grant {
  int fd = -1;
  int number = -1;
};

/// A read-only descriptor with the name of its region.
struct NamedFd {
  std::string name;
  int fd = -1;
};

/// How far the run has got; only ever compared for change.
struct Progress {
  std::uint64_t tokens = 0;  ///< committed tokens and prompt positions
  std::uint64_t reads = 0;   ///< extents that the loader has read
};

/// All shared memory of a run: every region with its writable and its read-only descriptor, and the
/// doorbells. Made from numbers alone; the launcher knows no model. Nothing but `life` stays mapped writable
/// here.
class Regions {
 public:
  /// Makes and initialises everything. Slab, dense and KV get their memory from their writers, while the
  /// drive is read (shm/population.hpp); the rest has it now. Errors: kExhausted with the numbers, kIo.
  static Result<Regions> create(const plan::RunPlan& plan, std::uint64_t run_id);

  /// Throws away every region but `life` and the journal and makes fresh ones of the next generation. All
  /// processes must be reaped and all tombstones over the old slab have hung up. Errors: as create(); nothing
  /// is usable then.
  Status renew();

  shm::Life& life() const { return *static_cast<shm::Life*>(life_map_.data()); }
  /// Read-only; null for a stage that does not run. Valid until renew().
  const shm::Desk* desk(shm::StageId s) const;
  std::uint64_t generation() const { return generation_; }
  std::uint64_t run_id() const { return run_id_; }

  /// What a process that hosts `stages` may have: writable where one of them is the writer, read-only where
  /// one is a reader, nothing else.
  std::vector<Grant> grants(const std::vector<shm::StageId>& stages) const;
  /// What anybody of this user may look at: life, desks, slabdir, journal.
  std::vector<NamedFd> readable() const;
  int bell(shm::StageId s) const { return bell_[shm::index(s)].get(); }
  /// Rings every doorbell: something in `life` changed that somebody may sleep for.
  void ring_all() const;

  /// Bytes of memory behind all regions.
  std::uint64_t allocated() const;
  /// Counters from the desks, summed over all generations.
  Progress progress() const;

 private:
  struct Region {
    Fd writable;
    Fd read_only;
  };
  enum class Memory : std::uint8_t { kNow, kFromItsWriter };
  Status make(Region& region, const std::string& name, std::uint64_t size, Memory memory = Memory::kNow);
  Status check_memory() const;
  Status make_desk(shm::StageId s);
  Status make_journal();
  Status make_renewable();
  Progress counters() const;

  plan::RunPlan plan_;
  std::uint64_t run_id_ = 0;
  std::uint64_t generation_ = 1;
  Region life_, slab_, dense_, slab_dir_, kv_, journal_;
  std::array<Region, shm::kStages> desk_;
  std::array<Fd, shm::kStages> bell_;
  shm::Mapping life_map_;
  std::array<shm::Mapping, shm::kStages> desk_map_;
  Progress before_;  ///< of earlier generations
};

}  // namespace wisp::launch
