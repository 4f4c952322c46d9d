#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "shm/journal.hpp"

namespace wisp::router {

/// The one writer of the journal. Every method leaves the record valid at each instruction: contents first,
/// then the one word that makes them true.
class JournalWriter {
 public:
  /// Takes over the journal of an earlier life: records whose opening was cut short are freed (their
  /// submission is still in edge 1), records that do not hold their checksum are dropped, KV lengths of
  /// another KV generation become 0. Returns what was dropped, for the log.
  std::vector<std::string> attach(shm::Journal* journal, std::uint32_t kv_pages, std::uint32_t kv_generation);

  std::uint32_t count() const { return journal_->records; }
  const shm::JournalRecord& at(std::uint32_t i) const { return *journal_->record(i); }
  bool in_use(std::uint32_t i) const { return at(i).request.load(std::memory_order_relaxed) != 0; }
  shm::CommitWord committed(std::uint32_t i) const {
    return shm::CommitWord::unpack(at(i).commit.load(std::memory_order_relaxed));
  }
  bool finished(std::uint32_t i) const { return committed(i).finish != shm::Finish::kNone; }
  /// Tokens known of record i: prompt and answer.
  std::uint32_t known(std::uint32_t i) const { return at(i).params.prompt_tokens + committed(i).length; }
  std::span<const std::uint32_t> ids(std::uint32_t i) const {
    return {shm::Journal::ids(journal_->record(i)), journal_->capacity};
  }
  std::span<const std::uint32_t> pages(std::uint32_t i) const {
    return {journal_->pages(journal_->record(i)), at(i).page_count};
  }
  std::uint32_t capacity() const { return journal_->capacity; }

  /// Index of the record of `request`, or -1.
  int find(std::uint64_t request) const;
  /// Index of a free record, or -1.
  int find_free() const;

  void open(std::uint32_t i, std::uint64_t request, const shm::RequestParams& params,
            std::span<const std::uint32_t> prompt, std::uint32_t gateway_epoch);
  void admit(std::uint32_t i, std::span<const std::uint32_t> pages);
  void adopt(std::uint32_t i, std::uint32_t gateway_epoch);
  /// The largest RequestParams::logprobs that a record has room for.
  std::uint32_t logprobs() const { return journal_->logprobs; }
  /// Appends tokens (1 at least); `finish` becomes true with them. This is the moment they exist. `told`: of
  /// each of them shm::logprob_words() words of the request's, which is none where it asks for none.
  void commit_tokens(std::uint32_t i, std::span<const std::uint32_t> tokens, shm::Finish finish,
                     std::uint64_t now_ns, std::span<const std::uint32_t> told = {});
  void commit_token(std::uint32_t i, std::uint32_t token, shm::Finish finish, std::uint64_t now_ns) {
    commit_tokens(i, {&token, 1}, finish, now_ns);
  }
  /// Ends record i after its first `length` tokens.
  void finish(std::uint32_t i, std::uint32_t length, shm::Finish why, std::uint64_t now_ns);
  void fail(std::uint32_t i, std::string_view error, std::uint64_t now_ns);
  void set_kv_len(std::uint32_t i, std::uint32_t len);
  /// Frees record i and its pages.
  void recycle(std::uint32_t i);

 private:
  shm::Journal* journal_ = nullptr;
  std::vector<std::uint32_t>
      crc_;  ///< of the committed part, by record; derived, so that a commit costs one token
  std::uint32_t kv_generation_ = 0;
};

}  // namespace wisp::router
