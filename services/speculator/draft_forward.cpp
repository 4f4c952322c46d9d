#include "services/speculator/draft_forward.hpp"

#include <algorithm>

namespace wisp::speculator {

DraftForward::DraftForward(const model::ModelSpec& spec, const compute::Weights& weights,
                           const plan::DraftPlan& sizes, const std::byte* experts, std::byte* kv,
                           kernels::KvFormat format, bool fast)
    : experts_(spec, experts),
      forward_(spec, weights, compute::KvPages{kv, sizes.kv_page_bytes, format}, kernels::best_kernels(),
               pool_, sizes.rows, sizes.ctx, fast),
      places_(sizes) {
  forward_.reserve_logits(1);
}

bool DraftForward::run(std::uint32_t place, std::uint32_t at, std::span<const std::uint32_t> ids,
                       std::span<const float> hidden, bool logits) {
  compute::Sequence& s = one_[0];
  s.ids = ids;
  s.pages = places_.pages(place);
  s.start = at;
  s.logits = logits ? compute::Logits::kLastRow : compute::Logits::kNone;
  s.error.clear();
  s.hidden = hidden;
  places_.cut(place, at);
  if (!forward_.run(one_, experts_, [] { return false; }) || !s.error.empty()) return false;
  rows_ += ids.size();
  return true;
}

std::uint32_t DraftForward::likeliest(std::uint32_t vocab) const {
  const std::span<const float> of = logits().first(vocab);
  return static_cast<std::uint32_t>(std::max_element(of.begin(), of.end()) - of.begin());
}

}  // namespace wisp::speculator
