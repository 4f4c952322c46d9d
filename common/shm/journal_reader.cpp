#include "shm/journal_reader.hpp"

#include <atomic>
#include <cstring>

#include "shm/shared_words.hpp"

namespace wisp::shm {

bool JournalReader::holds(const JournalRecord* r, std::uint64_t request, std::uint64_t& generation) const {
  generation = r->generation.load(std::memory_order_seq_cst);
  return (generation & 1) == 0 && r->request.load(std::memory_order_acquire) == request;
}

bool JournalReader::still(const JournalRecord* r, std::uint64_t request, std::uint64_t generation) const {
  return r->request.load(std::memory_order_acquire) == request &&
         r->generation.load(std::memory_order_acquire) == generation;
}

std::uint64_t JournalReader::request(std::uint32_t record) const {
  return journal_->record(record)->request.load(std::memory_order_acquire);
}

std::vector<std::uint64_t> JournalReader::requests() const {
  std::vector<std::uint64_t> ids(records());
  for (std::uint32_t i = 0; i < records(); ++i) ids[i] = request(i);
  return ids;
}

std::optional<std::uint32_t> JournalReader::find(std::uint64_t request) const {
  if (request == 0) return std::nullopt;
  for (std::uint32_t i = 0; i < records(); ++i) {
    std::uint64_t generation = 0;
    if (holds(journal_->record(i), request, generation)) return i;
  }
  return std::nullopt;
}

std::optional<JournalReader::State> JournalReader::state(std::uint32_t record, std::uint64_t request) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation)) return std::nullopt;
  State s;
  s.commit = CommitWord::unpack(r->commit.load(std::memory_order_acquire));
  s.prompt_tokens = load_word(&r->params.prompt_tokens);
  s.max_tokens = load_word(&r->params.max_tokens);
  // The generation first: a new router takes the length back before it says that the rows are its own.
  s.kv_generation = r->kv_generation.load(std::memory_order_acquire);
  s.kv_len = r->kv_len.load(std::memory_order_acquire);
  s.admitted = r->admitted.load(std::memory_order_acquire) != 0;
  if (!still(r, request, generation) || std::uint64_t{s.prompt_tokens} + s.commit.length > capacity())
    return std::nullopt;
  return s;
}

std::optional<RequestParams> JournalReader::params(std::uint32_t record, std::uint64_t request) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation)) return std::nullopt;
  const RequestParams p = load_shared(r->params);
  if (!still(r, request, generation) || p.eos_count > kMaxEos) return std::nullopt;
  return p;
}

std::optional<std::string> JournalReader::error(std::uint32_t record, std::uint64_t request) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation)) return std::nullopt;
  const ErrorText text = load_shared(r->error);
  if (!still(r, request, generation)) return std::nullopt;
  return std::string(text.bytes, strnlen(text.bytes, sizeof text.bytes));
}

bool JournalReader::ids(std::uint32_t record, std::uint64_t request, std::uint64_t from,
                        std::span<std::uint32_t> out) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation) || from > capacity() || out.size() > capacity() - from) return false;
  load_words(Journal::ids(r) + from, out);
  return still(r, request, generation);
}

bool JournalReader::told(std::uint32_t record, std::uint64_t request, std::uint32_t asked, std::uint32_t from,
                         std::span<std::uint32_t> out) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation) || asked == 0 || asked > logprobs()) return false;
  const std::size_t each = logprob_words(asked), count = out.size() / each;
  if (from > capacity() || count > capacity() - from || out.size() % each != 0) return false;
  for (std::size_t n = 0; n < count; ++n)
    load_words(journal_->told(r, from + static_cast<std::uint32_t>(n)), out.subspan(n * each, each));
  return still(r, request, generation);
}

bool JournalReader::pages(std::uint32_t record, std::uint64_t request, std::span<std::uint32_t> out) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation) || r->admitted.load(std::memory_order_acquire) == 0) return false;
  const std::uint32_t count = load_word(&r->page_count);
  if (count > pages_per_record() || out.size() > count) return false;
  load_words(journal_->pages(r), out);
  return still(r, request, generation);
}

}  // namespace wisp::shm
