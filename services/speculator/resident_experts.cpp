#include "services/speculator/resident_experts.hpp"

namespace wisp::speculator {

ResidentExperts::ResidentExperts(const model::ModelSpec& spec, const std::byte* experts)
    : experts_(experts), stride_(spec.expert.stride) {
  std::uint32_t next = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    first_.push_back(next);
    if (layer.moe) next += spec.router.experts;
  }
  ready_.reserve(spec.router.experts);
}

bool ResidentExperts::visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool /*decode*/,
                            Use use, Fail /*fail*/, Cancelled /*cancelled*/) {
  ready_.clear();
  for (std::uint32_t i = 0; i < set.size(); ++i) ready_.push_back({i, at(layer, set[i].expert)});
  use(ready_);
  return true;
}

}  // namespace wisp::speculator
