#include "services/gateway/journal_reader.hpp"

#include <atomic>
#include <cstring>

namespace wisp::gateway {

using shm::CommitWord;
using shm::Journal;
using shm::JournalRecord;

namespace {
/// Words are loaded with acquire, so that the look at the generation afterwards cannot be moved before them.
std::uint32_t load_word(const std::uint32_t* word) {
  // The memory is mapped read-only; a load of 4 bytes never writes.
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
}

template <class T>
T load_plain(const T& from) {
  static_assert(sizeof(T) % sizeof(std::uint32_t) == 0 && std::is_trivially_copyable_v<T>);
  std::uint32_t words[sizeof(T) / sizeof(std::uint32_t)];
  const auto* p = reinterpret_cast<const std::uint32_t*>(&from);
  for (std::size_t i = 0; i < std::size(words); ++i) words[i] = load_word(p + i);
  T out;
  std::memcpy(&out, words, sizeof out);
  return out;
}
}  // namespace

bool JournalReader::holds(const JournalRecord* r, std::uint64_t request, std::uint64_t& generation) const {
  generation = r->generation.load(std::memory_order_seq_cst);
  return (generation & 1) == 0 && r->request.load(std::memory_order_acquire) == request;
}

bool JournalReader::still(const JournalRecord* r, std::uint64_t request, std::uint64_t generation) const {
  return r->request.load(std::memory_order_acquire) == request &&
         r->generation.load(std::memory_order_acquire) == generation;
}

std::vector<std::uint64_t> JournalReader::requests() const {
  std::vector<std::uint64_t> ids(journal_->records);
  for (std::uint32_t i = 0; i < journal_->records; ++i)
    ids[i] = journal_->record(i)->request.load(std::memory_order_acquire);
  return ids;
}

std::optional<std::uint32_t> JournalReader::find(std::uint64_t request) const {
  if (request == 0) return std::nullopt;
  for (std::uint32_t i = 0; i < journal_->records; ++i) {
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
  s.kv_len = r->kv_len.load(std::memory_order_acquire);
  const std::uint64_t prompt = load_word(&r->params.prompt_tokens);
  if (!still(r, request, generation) || prompt + s.commit.length > journal_->capacity) return std::nullopt;
  return s;
}

std::optional<shm::RequestParams> JournalReader::params(std::uint32_t record, std::uint64_t request) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation)) return std::nullopt;
  const shm::RequestParams p = load_plain(r->params);
  if (!still(r, request, generation) || p.eos_count > shm::kMaxEos) return std::nullopt;
  return p;
}

std::optional<std::string> JournalReader::error(std::uint32_t record, std::uint64_t request) const {
  struct Text {
    char bytes[sizeof(JournalRecord::error)];
  };
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation)) return std::nullopt;
  const auto text = load_plain(*reinterpret_cast<const Text*>(r->error));
  if (!still(r, request, generation)) return std::nullopt;
  return std::string(text.bytes, strnlen(text.bytes, sizeof text.bytes));
}

bool JournalReader::tokens(std::uint32_t record, std::uint64_t request, std::uint32_t from, std::uint32_t to,
                           std::vector<std::uint32_t>& out) const {
  const JournalRecord* r = journal_->record(record);
  std::uint64_t generation = 0;
  if (!holds(r, request, generation)) return false;
  const std::uint64_t prompt = load_word(&r->params.prompt_tokens);
  if (prompt + to > journal_->capacity) return false;
  const std::size_t before = out.size();
  for (std::uint64_t i = prompt + from; i < prompt + to; ++i) out.push_back(load_word(Journal::ids(r) + i));
  if (still(r, request, generation)) return true;
  out.resize(before);
  return false;
}

}  // namespace wisp::gateway
