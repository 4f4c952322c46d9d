#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shm/journal.hpp"

namespace wisp::shm {

/// Reads records that the router may change or recycle at any moment: every read is checked against the
/// record's generation and request before it is believed. Requests' ids are never used again, so what several
/// calls say of one request belongs together.
class JournalReader {
 public:
  explicit JournalReader(const Journal* journal) : journal_(journal) {}

  std::uint32_t capacity() const { return journal_->capacity; }
  std::uint32_t records() const { return journal_->records; }
  std::uint32_t pages_per_record() const { return journal_->pages_per_record; }
  /// The largest RequestParams::logprobs that a record has room for.
  std::uint32_t logprobs() const { return journal_->logprobs; }
  /// The request in a record, 0 = free.
  std::uint64_t request(std::uint32_t record) const;
  /// The same of all records. One pass: each word is read once.
  std::vector<std::uint64_t> requests() const;
  /// The record of a request, opened to the end.
  std::optional<std::uint32_t> find(std::uint64_t request) const;

  /// How far a request is.
  struct State {
    CommitWord commit;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t max_tokens = 0;
    std::uint32_t kv_len = 0;
    std::uint32_t kv_generation = 0;
    bool admitted = false;
    std::uint32_t length() const { return prompt_tokens + commit.length; }  ///< ids that are there
  };
  /// The functions below give nullopt or false once the record is no longer this request's, or cannot be
  /// believed.
  std::optional<State> state(std::uint32_t record, std::uint64_t request) const;
  std::optional<RequestParams> params(std::uint32_t record, std::uint64_t request) const;
  std::optional<std::string> error(std::uint32_t record, std::uint64_t request) const;
  /// Fills `out` with the ids of prompt and answer from position `from` on, which `state` said are there.
  bool ids(std::uint32_t record, std::uint64_t request, std::uint64_t from,
           std::span<std::uint32_t> out) const;
  /// Fills `out` with what is told of the answer's tokens from number `from` on, logprob_words(asked) words
  /// each. `asked`: as params() gave it, not 0.
  bool told(std::uint32_t record, std::uint64_t request, std::uint32_t asked, std::uint32_t from,
            std::span<std::uint32_t> out) const;
  /// Fills `out` with the first KV pages of a request that is admitted. False too where it has fewer.
  bool pages(std::uint32_t record, std::uint64_t request, std::span<std::uint32_t> out) const;

 private:
  bool holds(const JournalRecord* r, std::uint64_t request, std::uint64_t& generation) const;
  bool still(const JournalRecord* r, std::uint64_t request, std::uint64_t generation) const;
  const Journal* journal_;
};

}  // namespace wisp::shm
