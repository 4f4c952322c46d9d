#pragma once
#include <vector>

#include "services/speculator/source.hpp"
#include "services/speculator/suffix_automaton.hpp"

namespace wisp::speculator {

/// What followed the longest suffix of prompt and answer where it stood before: for code, quotation, lists.
class PromptLookup final : public Source {
 public:
  /// Suffixes below this say nothing; from kLong on they rarely err.
  static constexpr std::uint32_t kShortest = 3, kLong = 8;

  /// `places`: records of the journal. `capacity`: the longest sequence.
  PromptLookup(std::uint32_t places, std::uint32_t capacity) : places_(places), capacity_(capacity) {}

  std::uint32_t propose(std::uint32_t place, std::uint64_t request, std::span<const std::uint32_t> ids,
                        std::span<std::uint32_t> out) override;
  void forget(std::uint32_t place) override;
  /// Length of the match behind the last proposal.
  std::uint32_t matched() const { return matched_; }

 private:
  struct Place {
    std::uint64_t request = 0;
    SuffixAutomaton text;
  };
  std::vector<Place> places_;
  std::uint32_t capacity_;
  std::uint32_t matched_ = 0;
};

}  // namespace wisp::speculator
