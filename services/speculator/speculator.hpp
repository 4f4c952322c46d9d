#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "services/speculator/prompt_lookup.hpp"
#include "services/speculator/script.hpp"
#include "services/speculator/source.hpp"
#include "services/speculator/speculator_stage.hpp"
#include "shm/journal_reader.hpp"

namespace wisp::speculator {

/// Names what answers, `model` (or head) or `match`, for tests and measurements; both where it is unset.
inline constexpr const char* kSourceVariable = "WISP_DRAFT_SOURCE";

/// Answers what the router asks on edge 8 with drafts on edge 9. Reads prompts and answers from the journal
/// when it is asked, so that a new life knows what the old one knew, and nothing has to be told twice. All
/// that it says is a hint: where the ring is full it is not said.
class SpeculatorStage final : public service::Stage {
 public:
  /// What computes drafts, and what its messages are called: kModel or kHead.
  struct Maker {
    std::unique_ptr<Source> source;  ///< null: none
    ring::DraftSource kind = ring::DraftSource::kModel;
  };
  /// `script` may be none. `sources`: of ring::kAskMatch, kAskModel and kAskHead, those that answer.
  SpeculatorStage(service::StageContext& ctx, Maker maker, std::optional<Script> script,
                  std::uint8_t sources);

  bool poll() override;
  bool has_work() override;

 private:
  /// What was last asked about a record of the journal.
  struct Question {
    std::uint64_t request = 0;  ///< 0: nothing
    std::uint32_t pos = 0;
    std::uint32_t count = 0;
    std::uint8_t sources = 0;
  };
  /// Prompt and answer of a record, as far as they were read.
  struct Text {
    std::uint64_t request = 0;
    std::vector<std::uint32_t> ids;
  };
  void take_questions();
  /// Forgets sequences that have ended.
  void forget_ended();
  /// Brings the text of `record` up to date. False where `request` lives there no more.
  bool read(std::uint32_t record, std::uint64_t request);
  void answer(std::uint32_t record);
  void answer_by_maker(std::uint32_t record, const Question& q);
  void answer_by_script(std::uint32_t record, const Question& q);
  void send(const Question& q, std::uint32_t record, std::uint8_t flags, std::uint32_t count,
            std::uint64_t cpu_ns);
  void send_nonsense(const Question& q, std::uint32_t record);

  service::StageContext& ctx_;
  shm::JournalReader journal_;
  ring::Consumer from_router_;
  ring::Producer to_router_;
  PromptLookup lookup_;
  Maker maker_;
  std::uint8_t asks_maker_;  ///< the flag of a question to it
  std::optional<Script> script_;
  const std::uint8_t sources_;
  std::vector<Question> questions_;  ///< [records]
  std::vector<Text> texts_;          ///< [records]
  std::vector<std::uint32_t> drafts_;
  std::uint32_t open_ = 0;  ///< questions without an answer
};

}  // namespace wisp::speculator
