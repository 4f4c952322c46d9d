#include <cstddef>
#include <ctime>

#include "base/crc32c.hpp"
#include "shm/desk.hpp"
#include "shm/journal.hpp"
#include "shm/life.hpp"
#include "slab/slot_word.hpp"

namespace wisp::shm {

namespace {
constexpr std::uint64_t align_up(std::uint64_t n, std::uint64_t a) {
  return (n + a - 1) / a * a;
}
constexpr std::uint64_t kPage = 4096;

/// FNV-1a over numbers.
struct Hash {
  std::uint64_t value = 0xcbf29ce484222325ULL;
  template <class... N>
  void mix(N... numbers) {
    ((value = (value ^ static_cast<std::uint64_t>(numbers)) * 0x100000001b3ULL), ...);
  }
};
}  // namespace

std::uint64_t layout_hash() {
  Hash h;
  h.mix(kLayoutVersion, kLine, kStages, kEdges, kDrainWindow);
  h.mix(sizeof(RegionHeader), offsetof(RegionHeader, layout_hash), offsetof(RegionHeader, generation));
  h.mix(sizeof(StageLife), offsetof(StageLife, started_ns), offsetof(StageLife, drained));
  h.mix(sizeof(Life), offsetof(Life, gate), offsetof(Life, give_up_reason), offsetof(Life, stage));
  h.mix(sizeof(Desk), offsetof(Desk, edges), offsetof(Desk, attached_epoch), offsetof(Desk, parked));
  h.mix(offsetof(Desk, rx_head), offsetof(Desk, tx_tail), offsetof(Desk, counter), offsetof(Desk, hop),
        offsetof(Desk, flight));
  h.mix(sizeof(LoaderBoard), sizeof(RouterBoard), offsetof(RouterBoard, cancel));
  h.mix(sizeof(ring::Descriptor), offsetof(ring::Descriptor, arena_off), offsetof(ring::Descriptor, aux));
  h.mix(sizeof(slab::SlotEntry), sizeof(slab::SlabDir), offsetof(slab::SlabDir, dense_ready));
  h.mix(sizeof(RequestParams), offsetof(RequestParams, eos), offsetof(RequestParams, created_s),
        offsetof(RequestParams, presence_penalty), offsetof(RequestParams, logprobs));
  h.mix(sizeof(JournalRecord), offsetof(JournalRecord, commit), offsetof(JournalRecord, params),
        offsetof(JournalRecord, error));
  h.mix(sizeof(Journal), offsetof(Journal, records_offset), sizeof(Kv), offsetof(Kv, pages_offset));
  h.mix(offsetof(Journal, logprobs), logprob_words(1), logprob_words(1 + kMostTopLogprobs));
  return h.value;
}

std::uint64_t monotonic_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000ULL + static_cast<std::uint64_t>(t.tv_nsec);
}

std::uint64_t engine_now(const Life& life) {
  // `since` first: whoever ends a pause stores the offset before it clears `since`. So a pause that ends
  // between the two loads makes the clock late by its length, never early.
  const std::uint64_t since = life.paused_since_ns.load(std::memory_order_acquire);
  const std::uint64_t offset = life.pause_offset_ns.load(std::memory_order_acquire);
  const std::uint64_t now = since != 0 ? since : monotonic_now();
  return now > offset ? now - offset : 0;
}

namespace {
template <class Place>
std::uint64_t lay_out_desk(StageId s, const DeskPlan& plan, Place place) {
  std::uint64_t at = align_up(sizeof(Desk), kPage);
  for (EdgeId e : kAllEdges) {
    const EdgeEnds ends = ends_of(e);
    if (ends.from != s) continue;
    EdgePlace p{};
    p.slots = ends.slots;
    p.ring_offset = at;
    at += std::uint64_t{ends.slots} * sizeof(ring::Descriptor);
    p.arena_offset = at;
    p.arena_size = align_up(plan.arena_bytes[index(e)], kPage);
    at += p.arena_size;
    place(index(e), p);
  }
  return at;
}
}  // namespace

std::uint64_t desk_size(StageId s, const DeskPlan& plan) {
  const std::uint64_t extra = lay_out_desk(s, plan, [](std::uint32_t, const EdgePlace&) {});
  return extra + align_up(plan.extra_bytes, kPage);
}

void init_desk(void* base, StageId s, const DeskPlan& plan, std::uint64_t run_id, std::uint64_t generation) {
  auto* d = static_cast<Desk*>(base);
  begin_header(base, RegionKind::kDesk, desk_size(s, plan), run_id, generation);
  d->stage = index(s);
  d->extra_offset = lay_out_desk(s, plan, [&](std::uint32_t e, const EdgePlace& p) { d->edges[e] = p; });
  d->extra_size = align_up(plan.extra_bytes, kPage);
  seal_header(base);
}

std::uint64_t journal_size(std::uint32_t records, std::uint32_t capacity, std::uint32_t logprobs) {
  const std::uint64_t words =
      std::uint64_t{capacity} + capacity / 16 + 1 + std::uint64_t{capacity} * logprob_words(logprobs);
  const std::uint64_t stride = align_up(sizeof(JournalRecord) + words * sizeof(std::uint32_t), kPage);
  return kPage + records * stride;
}

void init_journal(void* base, std::uint32_t records, std::uint32_t capacity, std::uint64_t profile_hash,
                  std::uint64_t run_id, std::uint32_t logprobs) {
  auto* j = static_cast<Journal*>(base);
  const std::uint64_t size = journal_size(records, capacity, logprobs);
  begin_header(base, RegionKind::kJournal, size, run_id, 1);
  j->records = records;
  j->capacity = capacity;
  j->pages_per_record = capacity / 16 + 1;
  j->logprobs = logprobs;
  j->records_offset = kPage;
  j->stride = (size - kPage) / records;
  j->profile_hash = profile_hash;
  seal_header(base);
}

std::uint32_t journal_crc(const JournalRecord* r, std::uint32_t length) {
  const std::uint32_t crc = crc32c(0, &r->params, sizeof(r->params));
  return crc32c(crc, Journal::ids(r),
                (std::uint64_t{r->params.prompt_tokens} + length) * sizeof(std::uint32_t));
}

std::uint32_t journal_crc_extend(std::uint32_t crc, std::uint32_t token) {
  return crc32c(crc, &token, sizeof token);
}

bool journal_record_valid(const Journal* j, const JournalRecord* r, std::uint32_t kv_pages) {
  const CommitWord c = CommitWord::unpack(r->commit.load(std::memory_order_acquire));
  const RequestParams& p = r->params;
  if (p.prompt_tokens == 0 || p.eos_count > kMaxEos || p.logprobs > j->logprobs) return false;
  if (std::uint64_t{p.prompt_tokens} + p.max_tokens > j->capacity || c.length > p.max_tokens) return false;
  if (c.finish > Finish::kError) return false;
  if (r->kv_len.load(std::memory_order_acquire) > p.prompt_tokens + c.length) return false;
  if (r->admitted.load(std::memory_order_acquire) != 0) {
    if (r->page_count > j->pages_per_record) return false;
    if (std::uint64_t{r->page_count} * 16 < std::uint64_t{p.prompt_tokens} + p.max_tokens) return false;
    for (std::uint32_t i = 0; i < r->page_count; ++i)
      if (j->pages(r)[i] >= kv_pages) return false;
  }
  return c.crc == journal_crc(r, c.length);
}

std::uint64_t kv_size(std::uint32_t pages, std::uint64_t page_bytes) {
  return kPage + pages * page_bytes;
}

void init_kv(void* base, std::uint32_t pages, std::uint32_t format, std::uint64_t page_bytes,
             std::uint64_t run_id, std::uint64_t generation) {
  auto* kv = static_cast<Kv*>(base);
  begin_header(base, RegionKind::kKv, kv_size(pages, page_bytes), run_id, generation);
  kv->pages = pages;
  kv->format = format;
  kv->page_bytes = page_bytes;
  kv->pages_offset = kPage;
  seal_header(base);
}

}  // namespace wisp::shm

namespace wisp::slab {

namespace {
constexpr std::uint64_t align_line(std::uint64_t n) {
  return (n + 127) / 128 * 128;
}
}  // namespace

std::uint64_t slab_dir_size(std::uint32_t slots, std::uint32_t layers, std::uint32_t experts) {
  const std::uint64_t bytes = align_line(sizeof(SlabDir)) + align_line(slots * sizeof(SlotEntry)) +
                              std::uint64_t{layers} * experts * sizeof(std::uint32_t);
  return (bytes + 4095) / 4096 * 4096;
}

void init_slab_dir(void* base, std::uint32_t slots, std::uint32_t layers, std::uint32_t experts,
                   std::uint64_t stride, std::uint64_t run_id, std::uint64_t generation) {
  auto* d = static_cast<SlabDir*>(base);
  shm::begin_header(base, shm::RegionKind::kSlabDir, slab_dir_size(slots, layers, experts), run_id,
                    generation);
  d->slots = slots;
  d->layers = layers;
  d->experts = experts;
  d->stride = stride;
  d->entries_offset = align_line(sizeof(SlabDir));
  d->index_offset = d->entries_offset + align_line(slots * sizeof(SlotEntry));
  shm::seal_header(base);
}

}  // namespace wisp::slab
