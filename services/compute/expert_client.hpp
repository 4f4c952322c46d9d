#pragma once
#include <cstdint>
#include <vector>

#include "service/stage.hpp"
#include "services/compute/forward.hpp"
#include "slab/lease.hpp"

namespace wisp::compute {

/// Experts from the slab: leases what is READY without a message, asks the loader for the rest, and waits
/// only while it holds no lease. Survives any number of loaders: a new one is told the open touch again.
class ExpertClient final : public ExpertSource {
 public:
  explicit ExpertClient(service::StageContext& ctx);

  /// Number of the step that the next touches belong to.
  void begin_step(std::uint64_t step) { step_ = step; }
  /// Whether choices go with the touches: then the rows of each step are to be named before it.
  bool traced() const { return traced_; }
  void name_rows(std::span<const ring::TouchRow> rows) { rows_ = rows; }
  void choices(std::span<const std::uint32_t> experts, std::span<const float> weights) override;
  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use, Fail fail,
             Cancelled cancelled) override;
  void kept(std::uint32_t layer, std::span<const ring::TouchMember> set) override;
  bool wants_guesses() const override { return guesses_; }
  void guess(std::uint32_t layer, std::span<const std::uint32_t> experts) override;
  /// Wakes a loader that was told of hits only, so that it sees their touches. For when there is no step to
  /// compute: until then it learns of them with the next need, or when half the ring is full of them.
  void wake_loader() { to_loader_.ring_peer(); }
  /// Where a trace is recorded: waits until the loader has taken every touch, so that a token is in the file
  /// before it is in the answer.
  void end_step();
  /// stats::ticks() that were slept until an expert came.
  std::uint64_t slept_ticks() const { return slept_ticks_; }

 private:
  struct Leased {
    ReadyExpert expert;
    std::uint32_t slot;
  };
  void lease_ready(std::uint32_t layer);
  void use_and_release(Use use);
  void send_touch(std::uint32_t layer, bool decode, bool again);
  void send_need(std::uint32_t key);
  void publish(const ring::Message& m, bool wake);
  /// Takes all answers that are there; leases before the head advances. Returns whether any was for an open
  /// need.
  bool take_answers(std::uint32_t layer, Fail fail);
  void lease_ended(std::uint32_t slot);
  std::uint32_t loader_epoch() const;
  bool any_open() const;

  service::StageContext& ctx_;
  const slab::SlabDir* dir_;
  const std::byte* slab_;
  slab::LeaseRow* row_;
  const shm::LoaderBoard* loader_board_;
  ring::Producer to_loader_;
  ring::Consumer from_loader_;
  std::uint64_t step_ = 0;
  std::uint64_t slept_ticks_ = 0;
  const bool traced_;                     ///< a trace is recorded
  const bool guesses_;                    ///< the plan has slots for what is read ahead
  std::vector<ring::TouchMember> guess_;  ///< scratch
  std::vector<ring::TouchMember> set_;    ///< of the open touch; `needs` 1 while the answer is out
  std::vector<Leased> leased_;
  std::vector<ReadyExpert> batch_;
  std::span<const ring::TouchRow> rows_;    ///< of this step, if traced
  std::vector<ring::TouchChoice> choices_;  ///< [rows, top_k] of the next visit, if traced
  std::vector<std::byte> payload_;          ///< of a touch with choices
};

}  // namespace wisp::compute
