#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "../compute/model_fixture.hpp"
#include "services/speculator/draft_model.hpp"

namespace wisp::speculator::testing {

using compute::testing::LoadedModel;

inline const std::string kData = WISP_TEST_DATA;

/// A run of `m` with itself as its draft.
inline plan::RunPlan plan_of(const LoadedModel& m, std::uint32_t ctx = 0, std::uint32_t parallel = 2,
                             const std::string& kv = "f32") {
  plan::RunOptions o;
  o.model = o.draft = m.path;
  o.ctx = ctx;
  o.parallel = parallel;
  o.threads = 1;
  o.kv = kv;
  auto plan = plan::make_plan(m.manifest, o, std::uint64_t{1} << 40, &m.manifest);
  if (!plan.ok()) throw std::runtime_error(plan.error().text);
  return std::move(plan).value();
}

inline std::unique_ptr<DraftModel> open_draft(const plan::RunPlan& plan, std::uint32_t vocab = ~0u) {
  auto draft = DraftModel::open(plan, vocab);
  if (!draft.ok()) throw std::runtime_error(draft.error().text);
  return std::move(draft).value();
}

/// What `draft` proposes, caught up first; at most `k` tokens.
inline std::vector<std::uint32_t> proposed(DraftModel& draft, std::uint32_t place,
                                           const std::vector<std::uint32_t>& ids, std::uint32_t k = 7) {
  std::vector<std::uint32_t> out(k);
  std::uint32_t n = 0;
  do n = draft.propose(place, 1, ids, out);
  while (draft.has_more(place));
  out.resize(n);
  return out;
}

/// Ids without a meaning, of a vocabulary of `vocab`.
inline std::vector<std::uint32_t> some_ids(std::uint32_t count, std::uint32_t vocab, std::uint32_t seed = 1) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < count; ++i) ids.push_back((i + 1) * seed * 2654435761u % vocab);
  return ids;
}

}  // namespace wisp::speculator::testing
