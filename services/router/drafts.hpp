#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "service/stage.hpp"
#include "services/router/batch_plan.hpp"
#include "services/router/draft_log.hpp"
#include "services/router/journal_writer.hpp"

namespace wisp::router {

/// The drafts at hand for each sequence, and the talk with the speculator about them (edges 8 and 9). All of
/// it is hints: what comes is believed only as far as it can be tried, a message that fits nothing is counted
/// and dropped, and a life that dies loses nothing but speed.
///
/// A message names the position of its first token. What of it the journal has reached meanwhile is held
/// against the journal, whoever drew it: so each draft is judged whether it was tried or not, and the rest of
/// a message that stood so far is at hand for the next step at once.
class Drafts {
 public:
  /// Both outlive this.
  Drafts(service::StageContext& ctx, const JournalWriter& journal);
  /// Once the journal is attached.
  void attach();

  /// Takes what the speculator sent. True if there was anything.
  bool take();
  bool has_messages() const { return on_ && !from_speculator_.empty(); }
  /// A request has been opened in `record`.
  void begin(std::uint32_t record);
  /// `record` has more tokens than before; it asks for drafts where none are at hand and they are worth it.
  void committed(std::uint32_t record, bool alone);
  /// Whether a step should wait for drafts still; `remaining_ns` says how long, CLOCK_MONOTONIC.
  bool waits();
  std::uint64_t remaining_ns() const;

  /// Adds drafts to the decode rows that `planner` has planned. How many.
  std::uint32_t add_to(BatchPlanner& planner, std::span<const PlannedRows> rows);
  /// A step of these rows is on its way: what may be drafted beside it is asked for.
  void published(std::span<const PlannedRows> rows);
  /// Its result came after `ns` and gave `tokens`.
  void finished(std::uint64_t ns, std::uint32_t tokens);

 private:
  struct Message {
    std::array<std::uint32_t, ring::kLongestDraft> ids{};
    std::uint32_t pos = 0;     ///< of the first
    std::uint32_t count = 0;   ///< 0: nothing at hand
    std::uint32_t judged = 0;  ///< so many were held against the journal, and stood
  };
  struct Sequence {
    std::array<Message, kDraftSources> from{};  ///< by source
    std::uint32_t asked_pos = 0;
    std::uint64_t asked_ns = 0;  ///< 0: no answer is out
  };
  struct Step {
    bool decode = false;
    std::uint32_t sequences = 0, drafts = 0;
    std::uint64_t waited_ns = 0;
  };
  void on_message(const ring::Descriptor& d);
  void judge(std::uint32_t record, DraftSource source);
  /// The best of what is at hand for `record`; count 0: nothing.
  DraftControl::Offer offer(std::uint32_t record) const;
  void ask(std::uint32_t record, std::uint8_t sources, std::uint32_t count);
  bool speculator_runs() const;
  std::uint32_t wanted_room(std::uint32_t record) const;

  service::StageContext& ctx_;
  const JournalWriter* journal_;
  bool on_;  ///< the plan has drafts
  /// What computes drafts, a draft model or the model's own head, as a flag of the question; 0: nothing does.
  std::uint8_t asks_maker_;
  DraftSource maker_;
  bool spare_core_;  ///< it runs beside compute, not instead of it
  LoggedDraftControl control_;
  ring::Producer to_speculator_;
  ring::Consumer from_speculator_;
  std::vector<Sequence> sequences_;  ///< [records]
  std::vector<DraftControl::Offer> offers_;
  std::uint32_t waiting_ = UINT32_MAX;  ///< record that a step waits for
  std::uint64_t waits_since_ns_ = 0, waits_until_ns_ = 0, waited_ns_ = 0;
  Step step_;
};

}  // namespace wisp::router
