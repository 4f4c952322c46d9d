#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/manifest.hpp"
#include "model/stripes.hpp"
#include "ring/messages.hpp"
#include "service/stage.hpp"
#include "services/loader/cache_policy.hpp"
#include "services/loader/dense_load.hpp"
#include "services/loader/drive_probe.hpp"
#include "services/loader/fifo.hpp"
#include "services/loader/io_backend.hpp"
#include "services/loader/learned_counts.hpp"
#include "services/loader/read_queue.hpp"
#include "services/loader/resident_memory.hpp"
#include "services/loader/trace_recorder.hpp"
#include "slab/lease.hpp"

namespace wisp::loader {

/// What a test gives instead of the inherited descriptor and the backend of the options.
struct LoaderParts {
  Fd tombstone;
  std::unique_ptr<IoBackend> backend;
  DriveProbe::Options probe = {};
};

/// The stage. The only writer of `slab`, `dense`, `slabdir` and its desk. All its tables are derived: a
/// successor rebuilds them from the slot words, and compute repeats the open touch. One thread, but for the
/// one that brings memory.
///
/// loader.cpp start and loop · messages.cpp edges 5 and 6 · fill.cpp reads · evict.cpp slots and leases ·
/// drain.cpp what a dead loader left · learn.cpp what outlives the run · prefetch.cpp guesses ·
/// probe.cpp how the drive is read best.
class LoaderStage : public service::Stage {
 public:
  /// Checks the model against the plan, takes the slots over and opens the backend. `ctx` outlives the stage.
  static Result<std::unique_ptr<LoaderStage>> make(service::StageContext& ctx, LoaderParts parts);

  bool poll() override;
  bool has_work() override;
  void sleep(service::StageContext& ctx) override;
  /// Nothing more comes of the memory it asked for.
  bool memory_settled() const { return memory_settled_; }

 private:
  /// kStaged: read ahead. Its word stays FILLING: no reader finds it, and a successor lets it drain. kAbsent:
  /// memory does not suffice for it.
  enum class State : std::uint8_t { kFree, kFilling, kStaged, kReady, kDraining, kAbsent };
  /// What this life knows of a slot. Key and generation repeat the slot word.
  struct Slot {
    State state = State::kFree;
    bool needed = false;   ///< an answer is due when it is READY
    bool dropped = false;  ///< of staging_, kFilling: no touch asked for it
    bool staging = false;  ///< belongs to staging_: kFree, kFilling or kStaged, and unknown to the policy
    bool answer_pending = false;  ///< READY, but edge 6 was full: not to be evicted
    std::uint32_t key = 0;
    std::uint32_t generation = 0;
  };
  /// An expert to be read that has no slot yet.
  struct Want {
    std::uint32_t key = 0;
    bool needed = false;
  };
  struct Answer {
    ring::Kind kind = ring::Kind::kSlotReady;
    std::uint32_t key = 0;
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
    std::string text;
  };
  /// Why the first want has no slot.
  enum class Blocked : std::uint8_t { kNo, kByFills, kByDraining, kByLease, kByOthers };
  enum class Reader : std::uint8_t { kNone, kCompute, kOther };

  LoaderStage(service::StageContext& ctx, model::Manifest manifest, std::vector<model::Stripe> stripes);

  // loader.cpp
  Status check_plan() const;
  Status open_files();
  Status open_trace();
  void lose_trace();
  Result<std::uint32_t> open_file(const std::string& path);
  std::string where_is(std::uint32_t key) const;
  Status start(LoaderParts parts);
  bool step_dense();
  bool step_done();
  bool step_memory();
  std::uint32_t drives() const {
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(drives_.size()));
  }
  slab::SlotEntry& entry(std::uint32_t slot) { return dir_->entries()[slot]; }
  shm::LoaderBoard* board() { return shm::extra_of<shm::LoaderBoard>(ctx_.desk()); }
  void store_word(std::uint32_t slot, slab::SlotState state);

  // learn.cpp
  void begin_learning();
  void learn(std::uint32_t layer);
  bool warm_up();
  void save_learned();

  // probe.cpp
  void begin_drive(const LoaderParts& parts);
  void use_figure(const DriveFigure& figure, const char* how);
  bool pin_slab();
  bool drive_is_idle() const;
  bool may_probe() const;
  bool probe();
  void take_probe_slots();
  void free_probe_slots();
  void begin_burst();
  bool read_for_probe();
  void on_probe_read(const ExtentDone& done);
  void end_probe();

  // messages.cpp
  bool accepts_input() const;
  bool follow_compute();
  bool take_messages();
  void on_touch(const ring::Descriptor& d);
  void take_members(const ring::Descriptor& d, std::uint32_t layer);
  void take_choices(const ring::Descriptor& d);
  void on_need(std::uint32_t key);
  void want(std::uint32_t key, bool needed);
  Want* open_want(std::uint32_t key);
  void answer_ready(std::uint32_t slot);
  void answer_failed(std::uint32_t key, const std::string& text);
  void send(Answer a);
  bool publish(const Answer& a);
  bool flush_answers();
  bool key_valid(std::uint32_t key) const;

  // fill.cpp
  bool place_wants();
  void begin_fill(std::uint32_t slot, std::uint32_t key, bool needed);
  void read_into(std::uint32_t slot, std::uint32_t key, Urgency urgency);
  void read_expert(std::uint32_t slot, std::uint32_t key, std::uint64_t tag, Urgency urgency);
  std::optional<Error> check_expert(std::uint32_t slot);
  void make_ready(std::uint32_t slot);
  void finish_fill(std::uint32_t slot, std::optional<Error> error);
  void fail_fill(std::uint32_t slot, Error error);

  // prefetch.cpp
  void take_staging_slots();
  void on_guess(const ring::Descriptor& d);
  void on_kept(const ring::Descriptor& d);
  bool prefetch();
  std::optional<std::uint32_t> staged(std::uint32_t key) const;
  /// Slots whose guess is there in whole.
  std::uint32_t read_ahead() const;
  bool holds_guess(std::uint32_t slot) const;
  void settle_guesses();
  void swap_in(std::uint32_t staged, std::uint32_t victim, bool needed);
  void finish_staging(std::uint32_t slot, std::optional<Error> error, std::uint64_t arrived);

  // evict.cpp
  std::optional<std::uint32_t> take_slot();
  bool bring(std::uint32_t slot);
  void lose_slots(std::uint64_t there, const Error& why);
  bool evict(std::uint32_t slot);
  void look_at_answers();
  Reader reader_of(std::uint32_t slot) const;
  bool leased_in(shm::StageId stage, std::uint32_t slot) const;
  bool answer_unread(std::uint32_t slot) const;
  bool wait_for_lease(std::uint32_t slot);
  void end_lease_wait();

  // drain.cpp
  void rebuild();
  void take_over(std::uint32_t slot);
  bool free_drained();
  bool any_drained() const;

  service::StageContext& ctx_;
  const model::Manifest manifest_;
  const std::vector<model::Stripe> stripes_;
  slab::SlabDir* const dir_;
  std::byte* const slab_;
  CachePolicy policy_;
  ring::Consumer input_;
  ring::Producer output_;
  std::vector<ModelFile> files_;            // one per distinct path
  std::vector<std::uint32_t> layer_file_;   // [layers], index into files_
  std::vector<std::uint32_t> stripe_file_;  // [layers * stripes], likewise
  std::vector<std::uint64_t> drives_;       // device numbers; ModelFile::drive is an index into it
  std::vector<Extent> parts_;               // scratch of read_expert()
  std::optional<DenseLoad> dense_;          // until `dense` is filled
  std::unique_ptr<IoBackend> backend_;      // ends after the queue, before the files
  std::optional<ReadQueue> queue_;
  std::optional<LearnedCounts> learned_;  // since the last save; none where it is off
  std::optional<LearnedFile> learned_file_;
  std::optional<ResidentMemory> memory_;
  bool memory_ended_ = false;             // that it is all there, or will never be, was acted on
  bool memory_settled_ = false;           // so was that its huge pages are made
  std::uint64_t learned_rows_ = 0;        // rows of the first layer since the last save
  std::vector<std::uint32_t> warm_;       // still to be brought in idle time, most wanted last
  std::unique_ptr<TraceRecorder> trace_;  // none unless asked for

  std::vector<ring::TouchMember> members_;  // of the touch at hand, scratch
  std::vector<CachePolicy::Member> set_;    // the same for the policy
  std::vector<ring::TouchRow> rows_;        // of the touch at hand, where a trace is recorded
  std::vector<ring::TouchChoice> choices_;  // [rows, top_k]
  std::vector<Slot> slots_;
  Fifo<Want> wants_;            // in set order, touch after touch
  Fifo<Answer> answers_;        // edge 6 was full
  std::vector<pollfd> wakers_;  // scratch of sleep()
  struct {
    std::string file, identity;
    std::uint64_t depth = ReadQueue::kDepthBytes;
    bool pin = false;          // the slab is to be registered, or more of it
    std::uint64_t pinned = 0;  // bytes of it
  } drive_;
  std::optional<DriveProbe> probe_;  // until the drive's figure is known
  struct {
    std::vector<std::uint32_t> slots, free;  // taken for it; those of them that no read goes to
    std::uint64_t requested = 0, arrived = 0, first = 0, first_ns = 0;  // of the burst at hand
    std::uint64_t at = 0;
    std::uint32_t in_flight = 0;
    bool running = false;
  } bursts_;
  std::vector<std::uint32_t> draining_;
  std::vector<std::uint32_t>
      unread_generation_;  // [slots]: generation named by an unread answer; see look_at_answers
  std::vector<std::uint32_t> unread_slots_;
  std::vector<std::uint32_t> staging_;  // slots that guesses are read into, outside of the policy
  std::vector<std::uint32_t> guesses_;  // keys still to be read ahead, the least likely first
  Blocked blocked_ = Blocked::kNo;
  std::optional<std::uint32_t> lease_wait_;  // slot
  std::uint32_t compute_epoch_ = 0;
};

}  // namespace wisp::loader
