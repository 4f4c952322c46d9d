#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "ring/messages.hpp"
#include "services/router/batch_plan.hpp"
#include "services/router/drafts.hpp"
#include "services/router/journal_writer.hpp"
#include "services/router/router_stage.hpp"

namespace wisp::router {

/// A finished record that its gateway has not acknowledged, and an unadopted record of a dead gateway, live
/// this long in engine time.
inline constexpr std::uint64_t kRecordLifeNs = 30'000'000'000ULL;

/// Admission, batching and the journal. Everything it knows is in the journal and the rings: a new life
/// starts by reading them.
class RouterStage final : public service::Stage {
 public:
  explicit RouterStage(service::StageContext& ctx);
  /// Takes over the journal. Errors: kCorrupt.
  Status attach();

  bool poll() override;
  bool has_work() override;
  void sleep(service::StageContext& ctx) override;

 private:
  bool drain_gateway();
  bool drain_results();
  bool expire_records();
  bool admit_queued();
  bool publish_step();

  /// True if the message's effect is recorded and it may be popped.
  bool on_submit(const ring::Descriptor& d);
  void on_finish_at(const ring::Descriptor& d);
  /// Tokens that it gave. `told`: shm::logprob_words(row.logprobs) words of each token that it drew.
  std::uint32_t on_result_row(const ring::StepResultRow& row, std::span<const std::uint32_t> told);
  /// Commits what was drawn, up to where the answer ends. How many.
  std::uint32_t commit(std::uint32_t record, std::span<const std::uint32_t> tokens,
                       std::span<const std::uint32_t> told);
  void count_drafts(const ring::StepResultRow& row);
  void note_stall(std::uint32_t record);
  void cancel(std::uint32_t record, shm::Finish why);
  void forget(std::uint32_t record);
  void tell_gateway(std::uint32_t record);
  /// Waits for a result with a core to itself: sleeps until it is nearly due by the time the last step took,
  /// then looks for it. False if it is late, and a sleep until the bell rings is in order.
  bool await_result();
  bool step_in_flight() const;
  bool gate_closed() const;
  std::uint32_t active() const;
  std::uint32_t queued() const;

  service::StageContext& ctx_;
  shm::RouterBoard* board_;
  JournalWriter journal_;
  Drafts drafts_;
  std::optional<BatchPlanner> planner_;  ///< from attach() on
  ring::Consumer from_gateway_;
  ring::Producer to_gateway_;
  ring::Producer to_compute_;
  ring::Consumer from_compute_;
  std::uint32_t kv_generation_ = 0;
  /// Steps whose result this life has seen: results <= this number are done. Derived at attach from the
  /// rings.
  std::uint64_t results_seen_ = 0;
  bool spare_core_;                           ///< compute leaves a core to this stage
  std::uint64_t published_ns_ = 0;            ///< when the last step was published, CLOCK_MONOTONIC
  std::uint64_t step_ns_ = 0;                 ///< how long the last one took
  std::uint64_t prompt_rows_ = 0;             ///< computed in this life
  std::vector<std::uint64_t> rows_at_token_;  ///< [records] prompt_rows_ when its last token came
};

}  // namespace wisp::router
