#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/model_spec.hpp"
#include "services/compute/forward.hpp"

namespace wisp::speculator {

/// All experts of a model, one behind the other in memory, layer by layer: given out at once, and none of
/// them ever fails.
class ResidentExperts final : public compute::ExpertSource {
 public:
  /// `experts`: [MoE layers, experts, stride] bytes; it outlives this object.
  ResidentExperts(const model::ModelSpec& spec, const std::byte* experts);

  /// Where expert `expert` of a MoE layer lies.
  const std::byte* at(std::uint32_t layer, std::uint32_t expert) const {
    return experts_ + (std::uint64_t{first_[layer]} + expert) * stride_;
  }
  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use, Fail fail,
             Cancelled cancelled) override;

 private:
  const std::byte* experts_;
  std::uint64_t stride_;
  std::vector<std::uint32_t> first_;         ///< [layers] number of a layer's first expert
  std::vector<compute::ReadyExpert> ready_;  ///< of one visit
};

}  // namespace wisp::speculator
