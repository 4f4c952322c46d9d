#pragma once
#include <memory>
#include <span>
#include <vector>

#include "service/stage.hpp"
#include "services/speculator/draft_head.hpp"
#include "services/speculator/source.hpp"
#include "shm/journal_reader.hpp"

namespace wisp::speculator {

/// A model's own draft head, fed with the rows that compute leaves in the KV pages (shm::Kv). Which pages,
/// and how many rows there are, the journal says; so a new life has all that the old one had. Rows that
/// compute writes anew meanwhile lie behind those, and what is read of a sequence that has just ended is
/// thrown away.
class HeadSource final : public Source {
 public:
  /// `at` has dense, kv and journal mapped, and outlives this object. Errors: those of DraftHead::open,
  /// kInvalid where the model is not the one of the plan.
  static Result<std::unique_ptr<HeadSource>> open(const service::Attachment& at);

  std::uint32_t propose(std::uint32_t place, std::uint64_t request, std::span<const std::uint32_t> ids,
                        std::span<std::uint32_t> out) override;
  bool has_more(std::uint32_t place) const override { return behind_[place]; }
  void forget(std::uint32_t place) override;

 private:
  HeadSource(const service::Attachment& at, std::unique_ptr<DraftHead> head);
  /// Rows [first, end) of the sequence of `request` in `place`, or as many of them as are there:
  /// [rows, hidden]. Valid until the next call.
  std::span<const float> rows(std::uint32_t place, std::uint64_t request, std::uint32_t first,
                              std::uint32_t end);

  const service::Attachment& at_;
  shm::JournalReader journal_;
  std::unique_ptr<DraftHead> head_;
  std::vector<float> rows_;            ///< [sizes().rows, hidden]
  std::vector<std::uint32_t> pages_;   ///< [a record's most]
  std::vector<std::uint16_t> halves_;  ///< [hidden]
  std::vector<bool> behind_;
};

}  // namespace wisp::speculator
