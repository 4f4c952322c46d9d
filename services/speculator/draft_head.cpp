#include "services/speculator/draft_head.hpp"

#include <algorithm>
#include <new>

#include "model/draft_head.hpp"
#include "services/speculator/model_files.hpp"

namespace wisp::speculator {

Result<std::unique_ptr<DraftHead>> DraftHead::open(const plan::RunPlan& plan, const std::byte* dense) {
  try {
    auto head = open_in_memory(plan, dense);
    if (!head.ok()) return std::move(head).error().within("the draft head of " + plan.options.model);
    return head;
  } catch (const std::bad_alloc&) {
    return exhausted("the draft head of " + plan.options.model +
                     ": its working memory is not there; give a smaller --ram");
  }
}

Result<std::unique_ptr<DraftHead>> DraftHead::open_in_memory(const plan::RunPlan& plan,
                                                             const std::byte* dense) {
  const std::string& folder = plan.options.model;
  WISP_ASSIGN(const model::Manifest m, model::load_manifest(folder));
  if (m.draft_head.empty())
    return not_found(
        "it has none; convert a checkpoint that has the layer that predicts further tokens, without "
        "--no-draft-head");
  const plan::DraftPlan sizes = plan::lay_out_draft_head(m, plan, dense == nullptr);
  std::unique_ptr<DraftHead> h(new DraftHead(m.draft_head.front(), sizes));
  WISP_ASSIGN(h->memory_, PrivateMemory::take(sizes.dense_bytes + sizes.expert_bytes + sizes.table_bytes +
                                              sizes.kv_bytes()));
  std::byte* const at = h->memory_.data();
  WISP_TRY(read_dense(folder, h->manifest_, at));
  WISP_TRY(read_experts(folder, h->manifest_, at + sizes.dense_bytes));
  WISP_TRY(h->bind(m, plan, dense));
  h->set_up(plan);
  return h;
}

Status DraftHead::bind(const model::Manifest& model, const plan::RunPlan& plan, const std::byte* dense) {
  WISP_ASSIGN(weights_, compute::Weights::bind(manifest_, memory_.data(), sizes_.dense_bytes));
  model::Manifest tables = model::draft_head_tables(model);
  std::uint64_t bytes = sizes_.table_bytes;
  if (dense == nullptr) {
    std::byte* const to = memory_.data() + sizes_.dense_bytes + sizes_.expert_bytes;
    WISP_TRY(read_tensors(plan.options.model, model, tables, to));
    dense = to;
  } else {
    bytes = model.dense_bytes;
    tables.dense = model.dense;
  }
  return weights_.bind_tables(tables, dense, bytes);
}

void DraftHead::set_up(const plan::RunPlan& plan) {
  const model::ModelSpec& spec = manifest_.spec;
  manifest_.dense.clear();
  manifest_.experts = {};
  std::byte* const experts = memory_.data() + sizes_.dense_bytes;
  std::byte* const kv = experts + sizes_.expert_bytes + sizes_.table_bytes;
  forward_.emplace(spec, weights_, sizes_, experts, kv, plan.kv_format, plan.profile == "fast");
  first_.resize(sizes_.places);
  behind_.resize(sizes_.places);
  chain_.resize(spec.hidden);
}

std::uint32_t DraftHead::standing(std::uint32_t place, std::span<const std::uint32_t> ids) {
  if (forward_->places().rows(place) != 0 && first_[place] != ids[0]) forward_->places().cut(place, 0);
  return forward_->places().ask(place, ids.subspan(1));
}

std::uint32_t DraftHead::wants(std::uint32_t place, std::span<const std::uint32_t> ids) {
  if (ids.size() < 2) return 0;
  return std::min(standing(place, ids), static_cast<std::uint32_t>(ids.size()) - 2);
}

std::uint32_t DraftHead::propose(std::uint32_t place, std::span<const std::uint32_t> ids, std::uint32_t first,
                                 std::span<const float> hidden, std::span<std::uint32_t> out) {
  behind_[place] = false;
  if (ids.size() < 2) return 0;
  if (ids.size() > sizes_.ctx) {
    forward_->places().forget(place);  // it never gets shorter
    return 0;
  }
  const std::size_t width = manifest_.spec.hidden;
  const auto last = static_cast<std::uint32_t>(ids.size()) - 2;  // the row that a proposal begins with
  const std::uint32_t rows = standing(place, ids), vocab = manifest_.spec.vocab;
  const std::span<const std::uint32_t> unseen = ids.subspan(rows == 0 ? 0 : rows + 1);
  if (std::any_of(unseen.begin(), unseen.end(), [vocab](std::uint32_t id) { return id >= vocab; })) return 0;
  first_[place] = ids[0];

  // The last row gives the first token: it is computed again where it stands already.
  const std::uint32_t at = out.empty() ? rows : std::min(rows, last);
  const std::uint64_t end = std::min<std::uint64_t>(first + hidden.size() / width, last + std::uint64_t{1});
  if (first > at || end <= at) return 0;
  const auto given = [&](std::uint32_t count) { return hidden.subspan((at - first) * width, count * width); };
  const auto left = static_cast<std::uint32_t>(end - at);
  const bool begins = !out.empty() && end == last + std::uint64_t{1};
  if (!begins || left > sizes_.rows) {
    const std::uint32_t piece = std::min(begins ? left - 1 : left, sizes_.rows);
    if (!forward_->places().hold(place, at + piece) ||
        !forward_->run(place, at, ids.subspan(at + 1, piece), given(piece), false))
      return 0;
    forward_->places().add(place, ids.subspan(at + 1, piece));
    behind_[place] = piece < left;
    return 0;
  }
  // Row n of the answer needs n - 1 drafted ones before it; those are no rows of the model's.
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), sizes_.ctx - last - 1));
  if (!forward_->places().hold(place, last + most) ||
      !forward_->run(place, at, ids.subspan(at + 1), given(left), true))
    return 0;
  forward_->places().add(place, ids.subspan(at + 1));
  out[0] = forward_->likeliest(vocab);
  for (std::uint32_t n = 1; n < most; ++n) {
    const std::span<const float> fed = forward_->normed();
    std::copy(fed.begin(), fed.end(), chain_.begin());
    if (!forward_->run(place, last + n, out.subspan(n - 1, 1), chain_, true)) return n;
    out[n] = forward_->likeliest(vocab);
  }
  return most;
}

void DraftHead::forget(std::uint32_t place) {
  forward_->places().forget(place);
  behind_[place] = false;
}

}  // namespace wisp::speculator
