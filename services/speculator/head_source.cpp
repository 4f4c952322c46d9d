#include "services/speculator/head_source.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "shm/shared_words.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::speculator {

Result<std::unique_ptr<HeadSource>> HeadSource::open(const service::Attachment& at) {
  WISP_CHECK(at.dense != nullptr && at.kv != nullptr && at.journal != nullptr);
  WISP_ASSIGN(std::unique_ptr<DraftHead> head, DraftHead::open(at.plan, at.dense));
  const std::uint64_t rows = std::uint64_t{2} * kernels::kPageTokens * head->spec().hidden;
  if (head->sizes().total() != at.plan.head_bytes || rows != at.plan.hidden_page_bytes)
    return invalid("model " + at.plan.model_name +
                   " is not the one this run was planned for; it changed on disk");
  return std::unique_ptr<HeadSource>(new HeadSource(at, std::move(head)));
}

HeadSource::HeadSource(const service::Attachment& at, std::unique_ptr<DraftHead> head)
    : at_(at),
      journal_(at.journal),
      head_(std::move(head)),
      pages_(journal_.pages_per_record()),
      halves_(head_->spec().hidden),
      behind_(head_->sizes().places) {
  rows_.resize(std::size_t{head_->sizes().rows} * head_->spec().hidden);
}

std::uint32_t HeadSource::propose(std::uint32_t place, std::uint64_t request,
                                  std::span<const std::uint32_t> ids, std::span<std::uint32_t> out) {
  behind_[place] = false;
  if (ids.size() < 2) return 0;
  const auto last = static_cast<std::uint32_t>(ids.size()) - 2;  // the row that a proposal begins with
  const std::uint32_t first = head_->wants(place, ids);
  const std::uint32_t end = std::min(last, first + head_->sizes().rows - 1) + 1;
  const std::span<const float> given = rows(place, request, first, end);
  if (given.empty()) return 0;
  const std::uint32_t n = head_->propose(place, ids, first, given, out);
  behind_[place] = n == 0 && given.size() == (end - first) * head_->spec().hidden &&
                   (head_->has_more(place) || head_->wants(place, ids) > first);
  return n;
}

std::span<const float> HeadSource::rows(std::uint32_t place, std::uint64_t request, std::uint32_t first,
                                        std::uint32_t end) {
  const auto before = journal_.state(place, request);
  // Of whose pages, before how many rows: a new router begins with none of them.
  if (!before || before->kv_generation != at_.kv->region.generation) return {};
  end = std::min(end, before->kv_len);
  if (first >= end) return {};
  const std::size_t count = (end - 1) / kernels::kPageTokens + 1;
  if (count > pages_.size() || !journal_.pages(place, request, std::span(pages_).first(count))) return {};
  float* out = rows_.data();
  for (std::uint32_t p = first; p < end; ++p) {
    const std::uint32_t page = pages_[p / kernels::kPageTokens];
    if (page >= at_.kv->pages) return {};
    const std::byte* in = at_.kv->page(page) + at_.plan.hidden_at();
    shm::load_words(reinterpret_cast<const std::uint16_t*>(in) + p % kernels::kPageTokens * halves_.size(),
                    std::span(halves_));
    out = std::ranges::transform(halves_, out, kernels::bf16_to_float).out;
  }
  // The pages of a request that has ended may be another's.
  const auto after = journal_.state(place, request);
  if (!after || after->commit.finish != shm::Finish::kNone) return {};
  return std::span<const float>(rows_).first((end - first) * halves_.size());
}

void HeadSource::forget(std::uint32_t place) {
  head_->forget(place);
  behind_[place] = false;
}

}  // namespace wisp::speculator
