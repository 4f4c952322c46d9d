#include "services/speculator/draft_model.hpp"

#include <algorithm>
#include <new>

#include "services/speculator/model_files.hpp"

namespace wisp::speculator {

Result<std::unique_ptr<DraftModel>> DraftModel::open(const plan::RunPlan& plan, std::uint32_t vocab) {
  const std::string option = "--draft " + plan.options.draft;
  try {
    auto draft = open_in_memory(plan, vocab);
    if (!draft.ok()) {
      Error error = std::move(draft).error();
      if (error.code == ErrorCode::kCorrupt)
        error.text += "; a folder that --draft has made of a checkpoint is made again once it is removed";
      return std::move(error).within(option);
    }
    return draft;
  } catch (const std::bad_alloc&) {
    return exhausted(option + ": its working memory is not there; give a smaller --ram");
  }
}

Result<std::unique_ptr<DraftModel>> DraftModel::open_in_memory(const plan::RunPlan& plan,
                                                               std::uint32_t vocab) {
  const std::string& folder = plan.options.draft;
  WISP_ASSIGN(model::Manifest manifest, model::load_manifest(folder));
  const plan::DraftPlan sizes = plan::lay_out_draft(manifest, plan);
  if (sizes.total() != plan.draft_bytes)
    return invalid("model " + manifest.name + " is not the one this run was planned for; it changed on disk");
  std::unique_ptr<DraftModel> d(new DraftModel(std::move(manifest), sizes, vocab));
  WISP_ASSIGN(d->memory_, PrivateMemory::take(sizes.dense_bytes + sizes.expert_bytes + sizes.kv_bytes()));
  WISP_TRY(read_dense(folder, d->manifest_, d->memory_.data()));
  WISP_TRY(read_experts(folder, d->manifest_, d->memory_.data() + sizes.dense_bytes));
  WISP_ASSIGN(d->weights_, compute::Weights::bind(d->manifest_, d->memory_.data(), sizes.dense_bytes));
  d->set_up(plan);
  return d;
}

void DraftModel::set_up(const plan::RunPlan& plan) {
  const model::ModelSpec& spec = manifest_.spec;
  manifest_.dense.clear();
  manifest_.experts = {};
  manifest_.draft_head = {};
  vocab_ = std::min(vocab_, spec.vocab);
  std::byte* const experts = memory_.data() + sizes_.dense_bytes;
  std::byte* const kv = experts + sizes_.expert_bytes;
  forward_.emplace(spec, weights_, sizes_, experts, kv, plan.kv_format, manifest_.profile == "fast");
  behind_.resize(sizes_.places);
}

std::uint32_t DraftModel::propose(std::uint32_t place, std::uint64_t /*request*/,
                                  std::span<const std::uint32_t> ids, std::span<std::uint32_t> out) {
  behind_[place] = false;
  if (ids.empty()) return 0;
  if (ids.size() > sizes_.ctx) {
    forward_->places().forget(place);  // it never gets shorter
    return 0;
  }
  const auto count = static_cast<std::uint32_t>(ids.size());
  const std::uint32_t rows = forward_->places().ask(place, ids);
  const std::span<const std::uint32_t> unseen = ids.subspan(rows);
  const std::uint32_t vocab = manifest_.spec.vocab;
  if (std::any_of(unseen.begin(), unseen.end(), [vocab](std::uint32_t id) { return id >= vocab; })) return 0;

  // The last id's row gives the first token: it is computed again where it stands already.
  const std::uint32_t at = std::min(rows, count - 1);
  const std::uint32_t left = count - at;
  if (out.empty() || left > sizes_.rows) {
    const std::uint32_t piece = std::min(left - 1, sizes_.rows);
    if (piece != 0 &&
        !(forward_->places().hold(place, at + piece) && run(place, at, ids.subspan(at, piece), false)))
      return 0;
    behind_[place] = at + piece + 1 < count || !out.empty();
    return 0;
  }
  // Row n of the answer needs n - 1 drafted ones before it.
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), sizes_.ctx - count + 1));
  if (!forward_->places().hold(place, count + most - 1) || !run(place, at, ids.subspan(at), true)) return 0;
  out[0] = forward_->likeliest(vocab_);
  for (std::uint32_t n = 1; n < most; ++n) {
    if (!run(place, count + n - 1, out.subspan(n - 1, 1), true)) return n;
    out[n] = forward_->likeliest(vocab_);
  }
  return most;
}

void DraftModel::forget(std::uint32_t place) {
  forward_->places().forget(place);
  behind_[place] = false;
}

bool DraftModel::run(std::uint32_t place, std::uint32_t at, std::span<const std::uint32_t> ids, bool logits) {
  if (!forward_->run(place, at, ids, {}, logits)) return false;
  forward_->places().add(place, ids);
  return true;
}

}  // namespace wisp::speculator
