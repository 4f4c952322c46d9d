#include "services/router/batch_plan.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"

namespace wisp::router {

namespace {
constexpr std::uint32_t kSmallestShared = 16;

template <class T>
void append(std::vector<std::byte>& out, const T* data, std::size_t n) {
  const auto* p = reinterpret_cast<const std::byte*>(data);
  out.insert(out.end(), p, p + n * sizeof(T));
}
}  // namespace

ChunkRule chunk_rule(const plan::RunPlan& plan) {
  const bool resident = plan.slots >= plan.expert_extents;
  const std::uint32_t part = std::max(plan.prompt_chunk / 4, kSmallestShared);
  return {plan.prompt_chunk, resident ? std::min(plan.prompt_chunk, part) : plan.prompt_chunk};
}

BatchPlanner::BatchPlanner(const JournalWriter& journal, ChunkRule rule, std::uint32_t parallel,
                           std::uint32_t kv_pages)
    : journal_(&journal), rule_(rule), kv_pages_(kv_pages), most_rows_(rule.alone + parallel) {
  WISP_CHECK(rule.alone > 0 && rule.beside > 0 && rule.beside <= rule.alone);
  rows_.reserve(journal.count());
  prompts_.reserve(journal.count());
  // Each admitted sequence may name its own pages, and one word of padding.
  bytes_.reserve(sizeof(ring::StepHeader) + journal.count() * (sizeof(ring::StepRequest) + 4) +
                 (std::size_t{rule.alone} + parallel + kv_pages) * sizeof(std::uint32_t));
  drafts_.reserve(ring::kMostDraftedInStep);
  used_.reserve(kv_pages);
  free_.reserve(kv_pages);
}

bool BatchPlanner::running(std::uint32_t i) const {
  return journal_->in_use(i) && !journal_->finished(i) &&
         journal_->at(i).admitted.load(std::memory_order_relaxed) != 0;
}

bool BatchPlanner::any() const {
  for (std::uint32_t i = 0; i < journal_->count(); ++i)
    if (running(i) && journal_->known(i) > journal_->at(i).kv_len.load(std::memory_order_relaxed))
      return true;
  return false;
}

bool BatchPlanner::decodes(const PlannedRows& p) const {
  // One missing row of an answer is its next token; more are a sequence whose KV rows were lost.
  return p.count == 1 + p.drafts && p.sample && journal_->committed(p.record).length > 0;
}

std::uint32_t BatchPlanner::room() const {
  std::uint32_t rows = 0;
  for (const PlannedRows& p : rows_) rows += p.count;
  return most_rows_ - rows;
}

void BatchPlanner::add_drafts(std::uint32_t record, std::span<const std::uint32_t> ids) {
  WISP_CHECK(ids.size() <= std::min(room(), ring::kMostDrafted) &&
             drafts_.size() + ids.size() <= ring::kMostDraftedInStep);
  auto at = drafts_.begin();
  for (PlannedRows& p : rows_) {
    if (p.record != record) {
      at += p.drafts;
      continue;
    }
    WISP_CHECK(p.drafts == 0 && decodes(p));
    p.drafts = static_cast<std::uint32_t>(ids.size());
    p.count += p.drafts;
    drafts_.insert(at, ids.begin(), ids.end());
    return;
  }
}

std::span<const PlannedRows> BatchPlanner::plan() {
  rows_.clear();
  drafts_.clear();
  prompts_.clear();
  for (std::uint32_t i = 0; i < journal_->count(); ++i) {
    if (!running(i)) continue;
    const std::uint32_t start = journal_->at(i).kv_len.load(std::memory_order_relaxed);
    // `count` is what is missing, until share() has said how much of it has room.
    if (journal_->known(i) > start) rows_.push_back({i, start, journal_->known(i) - start, true});
  }
  std::sort(rows_.begin(), rows_.end(), [this](const PlannedRows& a, const PlannedRows& b) {
    return journal_->at(a.record).order < journal_->at(b.record).order;
  });
  bool streams = false;
  for (std::uint32_t at = 0; at < rows_.size(); ++at) {
    if (decodes(rows_[at]))
      streams = true;
    else
      prompts_.push_back(at);
  }
  share(streams ? rule_.beside : rule_.alone);
  std::erase_if(rows_, [](const PlannedRows& p) { return p.count == 0; });
  return rows_;
}

void BatchPlanner::share(std::uint32_t room) {
  next_turn_ = turn_;
  const std::uint32_t records = journal_->count();
  std::sort(prompts_.begin(), prompts_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return (rows_[a].record + records - turn_) % records < (rows_[b].record + records - turn_) % records;
  });
  // Those that need no more than an equal part take what they need, and the part of the others grows.
  auto left = static_cast<std::uint32_t>(prompts_.size());
  std::uint32_t part = 0;
  for (bool grew = true; grew && left > 0;) {
    grew = false;
    part = room / left;
    for (std::uint32_t& at : prompts_) {
      if (at == UINT32_MAX || rows_[at].count > part) continue;
      room -= rows_[at].count;
      --left;
      at = UINT32_MAX;
      grew = true;
    }
  }
  if (left == 0) return;
  std::uint32_t over = room - part * left;
  for (const std::uint32_t at : prompts_) {
    if (at == UINT32_MAX) continue;
    PlannedRows& p = rows_[at];
    const std::uint32_t missing = p.count;
    p.count = part + (over > 0 ? 1 : 0);
    p.sample = p.count == missing;
    if (over == 0) continue;
    --over;
    next_turn_ = (p.record + 1) % records;
  }
}

std::span<const std::byte> BatchPlanner::encode(std::uint64_t step, std::uint32_t kv_generation) {
  turn_ = next_turn_;
  ring::StepHeader header{step, static_cast<std::uint32_t>(rows_.size()), 0, kv_generation, 0};
  for (const PlannedRows& p : rows_) header.rows += p.count;
  bytes_.clear();
  append(bytes_, &header, 1);
  const std::uint32_t* draft = drafts_.data();
  for (const PlannedRows& p : rows_) {
    const shm::JournalRecord& r = journal_->at(p.record);
    ring::StepRequest q;
    q.request = r.request.load(std::memory_order_relaxed);
    q.record = p.record;
    q.start = p.start;
    q.count = p.count;
    q.pages = (p.start + p.count + 15) / 16;
    q.sample = p.sample ? 1 : 0;
    q.generated = journal_->committed(p.record).length;
    q.params = r.params;
    q.drafts = p.drafts;
    append(bytes_, &q, 1);
    append(bytes_, journal_->ids(p.record).data() + p.start, p.count - p.drafts);
    append(bytes_, draft, p.drafts);
    draft += p.drafts;
    append(bytes_, journal_->pages(p.record).data(), q.pages);
    if ((p.count + q.pages) % 2 != 0)
      bytes_.resize(bytes_.size() + sizeof(std::uint32_t));  // keeps headers 8-aligned
  }
  return bytes_;
}

std::span<const std::uint32_t> BatchPlanner::free_pages() {
  used_.assign(kv_pages_, false);
  for (std::uint32_t i = 0; i < journal_->count(); ++i) {
    if (!running(i)) continue;
    for (const std::uint32_t p : journal_->pages(i)) used_[p] = true;
  }
  free_.clear();
  for (std::uint32_t p = 0; p < kv_pages_; ++p)
    if (!used_[p]) free_.push_back(p);
  return free_;
}

}  // namespace wisp::router
