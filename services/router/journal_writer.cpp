#include "services/router/journal_writer.hpp"

#include <algorithm>

#include "service/crash_point.hpp"
#include "shm/shared_words.hpp"

namespace wisp::router {

using shm::CommitWord;
using shm::Finish;
using shm::Journal;
using shm::JournalRecord;

std::vector<std::string> JournalWriter::attach(Journal* journal, std::uint32_t kv_pages,
                                               std::uint32_t kv_generation) {
  journal_ = journal;
  kv_generation_ = kv_generation;
  crc_.assign(journal->records, 0);
  std::vector<std::string> dropped;
  for (std::uint32_t i = 0; i < journal->records; ++i) {
    JournalRecord* r = journal->record(i);
    const std::uint64_t g = r->generation.load(std::memory_order_relaxed);
    if ((g & 1) != 0) {
      r->request.store(0, std::memory_order_release);
      r->generation.store(g + 1, std::memory_order_release);
    }
    if (!in_use(i)) continue;
    if (!shm::journal_record_valid(journal, r, kv_pages)) {
      dropped.push_back("request " + std::to_string(r->request.load(std::memory_order_relaxed)) +
                        " in record " + std::to_string(i));
      recycle(i);
      continue;
    }
    crc_[i] = committed(i).crc;
    if (r->kv_generation.load(std::memory_order_relaxed) != kv_generation) {
      r->kv_len.store(0, std::memory_order_release);
      r->kv_generation.store(kv_generation, std::memory_order_release);
    }
  }
  return dropped;
}

int JournalWriter::find(std::uint64_t request) const {
  for (std::uint32_t i = 0; i < count(); ++i)
    if (at(i).request.load(std::memory_order_relaxed) == request) return static_cast<int>(i);
  return -1;
}

int JournalWriter::find_free() const {
  for (std::uint32_t i = 0; i < count(); ++i)
    if (!in_use(i)) return static_cast<int>(i);
  return -1;
}

void JournalWriter::open(std::uint32_t i, std::uint64_t request, const shm::RequestParams& params,
                         std::span<const std::uint32_t> prompt, std::uint32_t gateway_epoch) {
  JournalRecord* r = journal_->record(i);
  const std::uint64_t g = r->generation.load(std::memory_order_relaxed);
  r->generation.store(g + 1, std::memory_order_seq_cst);
  const std::uint64_t order = journal_->next_order.load(std::memory_order_relaxed);
  journal_->next_order.store(order + 1, std::memory_order_relaxed);
  r->order = order;
  shm::store_shared(r->params, params);
  shm::store_word(&r->page_count, 0u);
  shm::store_shared(r->error, {});
  shm::store_words(Journal::ids(r), prompt);
  r->kv_len.store(0, std::memory_order_release);
  r->kv_generation.store(kv_generation_, std::memory_order_release);
  r->admitted.store(0, std::memory_order_release);
  r->adopted_by.store(gateway_epoch, std::memory_order_release);
  r->finished_ns.store(0, std::memory_order_release);
  crc_[i] = shm::journal_crc(r, 0);
  r->commit.store(CommitWord{0, Finish::kNone, crc_[i]}.pack(), std::memory_order_release);
  r->request.store(request, std::memory_order_release);
  r->generation.store(g + 2, std::memory_order_seq_cst);
}

void JournalWriter::admit(std::uint32_t i, std::span<const std::uint32_t> pages) {
  JournalRecord* r = journal_->record(i);
  shm::store_words(journal_->pages(r), pages);
  shm::store_word(&r->page_count, static_cast<std::uint32_t>(pages.size()));
  r->admitted.store(1, std::memory_order_release);
}

void JournalWriter::adopt(std::uint32_t i, std::uint32_t gateway_epoch) {
  journal_->record(i)->adopted_by.store(gateway_epoch, std::memory_order_release);
}

void JournalWriter::commit_tokens(std::uint32_t i, std::span<const std::uint32_t> tokens, Finish finish,
                                  std::uint64_t now_ns, std::span<const std::uint32_t> told) {
  JournalRecord* r = journal_->record(i);
  const CommitWord c = committed(i);
  const std::size_t each = shm::logprob_words(r->params.logprobs);
  WISP_CHECK(told.size() == tokens.size() * each && r->params.logprobs <= journal_->logprobs);
  for (std::uint32_t n = 0; each != 0 && n < tokens.size(); ++n)
    shm::store_words(journal_->told(r, c.length + n), told.subspan(n * each, each));
  shm::store_words(Journal::ids(r) + r->params.prompt_tokens + c.length, tokens);
  if (finish != Finish::kNone) r->finished_ns.store(now_ns, std::memory_order_relaxed);
  crc_[i] = c.crc;
  for (const std::uint32_t token : tokens) crc_[i] = shm::journal_crc_extend(crc_[i], token);
  service::crash_point(service::CrashPoint::kTokenBeforeCommit);
  r->commit.store(CommitWord{c.length + static_cast<std::uint32_t>(tokens.size()), finish, crc_[i]}.pack(),
                  std::memory_order_release);
}

void JournalWriter::finish(std::uint32_t i, std::uint32_t length, Finish why, std::uint64_t now_ns) {
  JournalRecord* r = journal_->record(i);
  const CommitWord c = committed(i);
  crc_[i] = length == c.length ? c.crc : shm::journal_crc(r, length);
  r->finished_ns.store(now_ns, std::memory_order_relaxed);
  // KV rows past the new end belong to nobody; the length must be back before the shorter commit is true.
  const std::uint32_t rows = r->params.prompt_tokens + length;
  if (r->kv_len.load(std::memory_order_relaxed) > rows) r->kv_len.store(rows, std::memory_order_release);
  r->commit.store(CommitWord{length, why, crc_[i]}.pack(), std::memory_order_release);
}

void JournalWriter::fail(std::uint32_t i, std::string_view error, std::uint64_t now_ns) {
  JournalRecord* r = journal_->record(i);
  shm::ErrorText text{};
  error.copy(text.bytes, sizeof text.bytes - 1);
  shm::store_shared(r->error, text);
  finish(i, committed(i).length, Finish::kError, now_ns);
}

void JournalWriter::set_kv_len(std::uint32_t i, std::uint32_t len) {
  journal_->record(i)->kv_len.store(len, std::memory_order_release);
}

void JournalWriter::recycle(std::uint32_t i) {
  JournalRecord* r = journal_->record(i);
  r->request.store(0, std::memory_order_release);
  r->generation.store(r->generation.load(std::memory_order_relaxed) + 2, std::memory_order_seq_cst);
}

}  // namespace wisp::router
