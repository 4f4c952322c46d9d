#pragma once
#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fault_backend.hpp"
#include "model/manifest.hpp"
#include "ring/messages.hpp"
#include "service/stage.hpp"
#include "services/loader/loader.hpp"
#include "slab/lease.hpp"

namespace wisp::loader {

/// A folder that goes with the test.
struct ScratchDir {
  ScratchDir();
  ~ScratchDir();
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  std::string path;
};

/// A tiny model, written anew: 3 layers of 16 experts.
class TinyModel {
 public:
  explicit TinyModel(std::uint32_t width = 96);  ///< of an expert
  const std::string& folder() const { return folder_; }
  const model::Manifest& manifest() const { return manifest_; }
  std::string expert_file(std::uint32_t layer) const { return folder_ + "/" + manifest_.experts[layer].file; }

 private:
  ScratchDir dir_;
  std::string folder_;
  model::Manifest manifest_;
};

/// One answer, as compute saw it.
struct Seen {
  ring::Kind kind;
  std::uint32_t key, slot, gen;
  std::string text;
};

/// The regions of a run, a loader that the test drives by hand, and a scripted compute.
class Rig {
 public:
  Rig(const TinyModel& model, std::uint32_t slots, std::string io = "auto");
  ~Rig();

  /// Starts the loader's next epoch; the one before, if any, is gone and reaped.
  Status start(LoaderParts parts = {});
  /// Starts it with a FaultBackend between it and the pread threads; the loader owns it.
  FaultBackend* start_with_faults();
  void kill();           ///< the loader goes, whatever it is doing
  void start_compute();  ///< compute's next epoch

  LoaderStage& loader() { return *loader_; }
  service::StageContext& context() { return *context_; }
  /// Polls until `done`; false after 20 s.
  bool until(const std::function<bool()>& done);
  bool idle(int turns = 50);  ///< polls until nothing happens any more
  bool load_dense();

  // compute's part
  void touch(std::uint32_t layer, const std::vector<std::uint32_t>& experts,
             std::uint8_t flags = ring::kTouchDecode, const std::vector<std::uint32_t>& leased = {});
  void need(std::uint32_t key);
  void guess(std::uint32_t layer, const std::vector<std::uint32_t>& experts);
  std::uint32_t lease(std::uint32_t key);  ///< slot + 1, or 0
  void release(std::uint32_t slot);
  /// Takes the answers that are there. `hold` leases their slots, before the head advances.
  std::vector<Seen> take(bool hold = false, std::size_t most = ~std::size_t{0});

  slab::SlotWord word(std::uint32_t slot) const;
  std::uint32_t slot_of(std::uint32_t key) const;  ///< slot + 1 of the READY slot with `key`, or 0
  bool intact(std::uint32_t slot) const;           ///< the slot holds its expert's bytes
  std::uint64_t count(stats::Counter c) const { return desk(shm::StageId::kLoader)->get(c); }
  std::uint32_t in_state(slab::SlotState s) const;
  shm::Desk* desk(shm::StageId s) const { return at_.desk[shm::index(s)]; }
  shm::LoaderBoard* board() const { return shm::extra_of<shm::LoaderBoard>(desk(shm::StageId::kLoader)); }
  slab::SlabDir* dir() const { return at_.slab_dir; }
  shm::Life* life() const { return life_; }
  void drained(std::uint32_t epoch);
  std::uint32_t epoch() const { return epoch_; }
  int tombstone() const { return tombstone_.get(); }  ///< read end of the newest epoch's
  std::uint32_t slots() const { return at_.plan.slots; }
  service::Attachment& at() { return at_; }

 private:
  void* region(const std::string& name, std::uint64_t size);
  LoaderParts with_tombstone(LoaderParts parts);

  const TinyModel& model_;
  service::Attachment at_;
  shm::Life* life_ = nullptr;
  std::vector<Fd> fds_;
  std::unique_ptr<service::StageContext> context_, compute_context_;
  std::unique_ptr<LoaderStage> loader_;
  ring::Producer to_loader_;
  ring::Consumer from_loader_;
  slab::LeaseRow* row_ = nullptr;
  Fd tombstone_;
  std::uint32_t epoch_ = 0;
  std::uint32_t compute_epoch_ = 0;
  std::uint64_t step_ = 0;
};

}  // namespace wisp::loader
