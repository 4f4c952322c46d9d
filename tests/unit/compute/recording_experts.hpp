#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "services/compute/forward.hpp"
#include "services/eval/file_experts.hpp"

namespace wisp::compute::testing {

/// The experts of the files, and what was asked of them.
class RecordingExperts final : public ExpertSource {
 public:
  struct Visit {
    std::uint32_t layer = 0;
    std::map<std::uint32_t, std::uint32_t> rows;  ///< expert -> rows that chose it, as the set says
    std::map<std::uint32_t, std::uint32_t> uses;  ///< expert -> times it was handed over
    bool distinct = true;                         ///< no expert twice in the set
  };

  RecordingExperts(const std::string& folder, const model::Manifest& m)
      : files_(eval::FileExperts::open(folder, m).value()) {}

  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use, Fail fail,
             Cancelled cancelled) override {
    Visit& v = visits_.emplace_back();
    v.layer = layer;
    for (const ring::TouchMember& m : set) v.distinct &= v.rows.emplace(m.expert, m.rows).second;
    const auto counted = [&](std::span<const ReadyExpert> ready) {
      for (const ReadyExpert& r : ready) ++v.uses[set[r.member].expert];
      use(ready);
      if (after_use) after_use();
    };
    return files_.visit(layer, set, decode, counted, fail, cancelled);
  }

  std::function<void()> after_use;  ///< called when the extents of a call have been used

  /// The visits since the last call, in order.
  std::vector<Visit> take() { return std::exchange(visits_, {}); }

 private:
  eval::FileExperts files_;
  std::vector<Visit> visits_;
};

}  // namespace wisp::compute::testing
