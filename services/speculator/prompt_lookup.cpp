#include "services/speculator/prompt_lookup.hpp"

#include <algorithm>

namespace wisp::speculator {

std::uint32_t PromptLookup::propose(std::uint32_t place, std::uint64_t request,
                                    std::span<const std::uint32_t> ids, std::span<std::uint32_t> out) {
  Place& p = places_[place];
  matched_ = 0;
  if (ids.size() > capacity_) return 0;
  // A request's ids only grow; fewer than were read are those of another life's journal.
  if (p.request != request || ids.size() < p.text.size()) {
    p.request = request;
    p.text.begin(capacity_);
  }
  for (std::size_t i = p.text.size(); i < ids.size(); ++i) p.text.append(ids[i]);
  const SuffixAutomaton::Match m = p.text.match();
  if (m.length < kShortest) return 0;
  matched_ = m.length;
  // What follows may run into the end of the text: then it repeats itself from there.
  const std::size_t period = ids.size() - m.end;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = ids[m.end + i % period];
  return static_cast<std::uint32_t>(out.size());
}

void PromptLookup::forget(std::uint32_t place) {
  if (places_[place].request == 0) return;
  places_[place].request = 0;
  places_[place].text.release();
}

}  // namespace wisp::speculator
