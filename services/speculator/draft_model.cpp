#include "services/speculator/draft_model.hpp"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/fd.hpp"
#include "model/safetensors.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::speculator {

using kernels::kPageTokens;

namespace {

Result<Fd> open_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return io_error(path + ": " + std::strerror(errno));
  return fd;
}

/// What was read lies in memory of our own now; a second copy would be outside of the budget.
void drop_cached(const Fd& fd) {
  static_cast<void>(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED));
}

Error damaged(const std::string& path, const std::string& what) {
  return corrupt(path + ": " + what +
                 " does not match its checksum; check with `wisp verify` and convert the model again");
}

}  // namespace

Result<std::unique_ptr<DraftModel>> DraftModel::open(const plan::RunPlan& plan, std::uint32_t vocab) {
  const std::string option = "--draft " + plan.options.draft;
  try {
    auto draft = open_in_memory(plan, vocab);
    if (!draft.ok()) return std::move(draft).error().within(option);
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
  WISP_TRY(d->read_dense(folder));
  WISP_TRY(d->read_experts(folder));
  WISP_ASSIGN(d->weights_, compute::Weights::bind(d->manifest_, d->memory_.data(), sizes.dense_bytes));
  d->set_up(plan);
  return d;
}

Status DraftModel::read_dense(const std::string& folder) {
  const std::string path = folder + "/" + manifest_.dense_file;
  WISP_ASSIGN(const Fd fd, open_file(path));
  WISP_TRY(model::read_exactly(fd.get(), manifest_.dense_file_offset,
                               {reinterpret_cast<std::uint8_t*>(memory_.data()), sizes_.dense_bytes}, path));
  drop_cached(fd);
  for (const auto& [name, t] : manifest_.dense)
    if (XXH3_64bits(memory_.data() + t.offset, t.bytes) != t.checksum) return damaged(path, "tensor " + name);
  return {};
}

Status DraftModel::read_experts(const std::string& folder) {
  const std::uint64_t payload = manifest_.spec.expert.payload;
  std::byte* to = memory_.data() + sizes_.dense_bytes;
  for (const model::LayerExperts& layer : manifest_.experts) {
    if (layer.file.empty()) continue;
    const std::string path = folder + "/" + layer.file;
    WISP_ASSIGN(const Fd fd, open_file(path));
    for (std::size_t e = 0; e < layer.extents.size(); ++e, to += manifest_.spec.expert.stride) {
      WISP_TRY(model::read_exactly(fd.get(), layer.extents[e].offset,
                                   {reinterpret_cast<std::uint8_t*>(to), payload}, path));
      if (XXH3_64bits(to, payload) != layer.extents[e].checksum)
        return damaged(path, "expert " + std::to_string(e));
    }
    drop_cached(fd);
  }
  return {};
}

void DraftModel::set_up(const plan::RunPlan& plan) {
  const model::ModelSpec& spec = manifest_.spec;
  manifest_.dense.clear();
  manifest_.experts = {};
  vocab_ = std::min(vocab_, spec.vocab);
  std::byte* const experts = memory_.data() + sizes_.dense_bytes;
  std::byte* const kv = experts + sizes_.expert_bytes;
  pool_ = std::make_unique<compute::ThreadPool>(1, false);
  experts_ = std::make_unique<ResidentExperts>(spec, experts);
  forward_ = std::make_unique<compute::Forward>(
      spec, weights_, compute::KvPages{kv, sizes_.kv_page_bytes, plan.kv_format}, kernels::best_kernels(),
      *pool_, sizes_.rows, sizes_.ctx, manifest_.profile == "fast");
  forward_->reserve_logits(1);
  one_.resize(1);
  places_.resize(sizes_.places);
  const std::uint32_t longest = (sizes_.ctx + kPageTokens - 1) / kPageTokens;
  for (Place& p : places_) p.pages.reserve(longest);
  page_ids_.resize(std::size_t{sizes_.kv_pages} * kPageTokens);
  free_.reserve(sizes_.kv_pages);
  for (std::uint32_t page = sizes_.kv_pages; page-- > 0;) free_.push_back(page);
}

std::uint32_t DraftModel::propose(std::uint32_t place, std::uint64_t /*request*/,
                                  std::span<const std::uint32_t> ids, std::span<std::uint32_t> out) {
  Place& p = places_[place];
  p.behind = false;
  p.asked = ++calls_;
  if (ids.empty()) return 0;
  if (ids.size() > sizes_.ctx) {
    let_go(p, 0);  // it never gets shorter
    return 0;
  }
  const auto count = static_cast<std::uint32_t>(ids.size());
  p.rows = common(p, ids);
  const std::span<const std::uint32_t> unseen = ids.subspan(p.rows);
  const std::uint32_t vocab = manifest_.spec.vocab;
  if (std::any_of(unseen.begin(), unseen.end(), [vocab](std::uint32_t id) { return id >= vocab; })) return 0;

  // The last id's row gives the first token: it is computed again where it stands already.
  std::uint32_t at = std::min(p.rows, count - 1);
  const std::uint32_t left = count - at;
  if (out.empty() || left > sizes_.rows) {
    const std::uint32_t piece = std::min(left - 1, sizes_.rows);
    if (piece != 0 && !(hold(p, at + piece) && run(p, at, ids.subspan(at, piece), false))) return 0;
    p.behind = at + piece + 1 < count || !out.empty();
    return 0;
  }
  // Row n of the answer needs n - 1 drafted ones before it.
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), sizes_.ctx - count + 1));
  if (!hold(p, count + most - 1) || !run(p, at, ids.subspan(at), true)) return 0;
  out[0] = likeliest();
  for (std::uint32_t n = 1; n < most; ++n) {
    if (!run(p, count + n - 1, out.subspan(n - 1, 1), true)) return n;
    out[n] = likeliest();
  }
  return most;
}

void DraftModel::forget(std::uint32_t place) {
  Place& p = places_[place];
  let_go(p, 0);
  p.behind = false;
}

std::uint32_t DraftModel::common(const Place& p, std::span<const std::uint32_t> ids) const {
  const std::size_t most = std::min<std::size_t>(p.rows, ids.size());
  for (std::size_t at = 0; at < most; at += kPageTokens) {
    const std::span<const std::uint32_t> given =
        ids.subspan(at, std::min<std::size_t>(kPageTokens, most - at));
    const std::uint32_t* kept = &page_ids_[std::size_t{p.pages[at / kPageTokens]} * kPageTokens];
    const auto differs = std::mismatch(given.begin(), given.end(), kept).first;
    if (differs != given.end()) return static_cast<std::uint32_t>(at + (differs - given.begin()));
  }
  return static_cast<std::uint32_t>(most);
}

bool DraftModel::hold(Place& p, std::uint32_t positions) {
  const std::size_t pages = (std::size_t{positions} + kPageTokens - 1) / kPageTokens;
  if (p.pages.size() > pages) let_go(p, pages);
  while (p.pages.size() < pages) {
    if (free_.empty() && !take_back_a_place(p)) return false;
    p.pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

bool DraftModel::take_back_a_place(const Place& but) {
  Place* least = nullptr;
  for (Place& p : places_)
    if (&p != &but && !p.pages.empty() && (least == nullptr || p.asked < least->asked)) least = &p;
  if (least == nullptr) return false;
  let_go(*least, 0);
  return true;
}

void DraftModel::let_go(Place& p, std::size_t pages) {
  for (; p.pages.size() > pages; p.pages.pop_back()) free_.push_back(p.pages.back());
  p.rows = std::min(p.rows, static_cast<std::uint32_t>(pages * kPageTokens));
}

bool DraftModel::run(Place& p, std::uint32_t at, std::span<const std::uint32_t> ids, bool logits) {
  compute::Sequence& s = one_[0];
  s.ids = ids;
  s.pages = p.pages;
  s.start = at;
  s.logits = logits ? compute::Logits::kLastRow : compute::Logits::kNone;
  s.error.clear();
  p.rows = at;
  if (!forward_->run(one_, *experts_, [] { return false; }) || !s.error.empty()) return false;
  for (const std::uint32_t id : ids) {
    page_ids_[std::size_t{p.pages[p.rows / kPageTokens]} * kPageTokens + p.rows % kPageTokens] = id;
    ++p.rows;
  }
  rows_ += ids.size();
  return true;
}

std::uint32_t DraftModel::likeliest() const {
  const std::span<const float> logits = forward_->logits(0).first(vocab_);
  return static_cast<std::uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace wisp::speculator
