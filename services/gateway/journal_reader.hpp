#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shm/journal.hpp"

namespace wisp::gateway {

/// Reads records that the router may change or recycle at any moment: every read is checked against the
/// record's generation and request before it is believed.
class JournalReader {
 public:
  explicit JournalReader(const shm::Journal* journal) : journal_(journal) {}

  std::uint32_t capacity() const { return journal_->capacity; }
  std::uint32_t records() const { return journal_->records; }
  /// The request ids of all records, 0 = free. One pass: each word is read once.
  std::vector<std::uint64_t> requests() const;
  /// The record of a request, opened to the end.
  std::optional<std::uint32_t> find(std::uint64_t request) const;

  /// How far a request is.
  struct State {
    shm::CommitWord commit;
    std::uint32_t kv_len = 0;
  };
  /// The functions below give nullopt or false once the record is no longer this request's, or cannot be
  /// believed.
  std::optional<State> state(std::uint32_t record, std::uint64_t request) const;
  std::optional<shm::RequestParams> params(std::uint32_t record, std::uint64_t request) const;
  std::optional<std::string> error(std::uint32_t record, std::uint64_t request) const;
  /// Appends generated tokens [from, to), which `state` said are there.
  bool tokens(std::uint32_t record, std::uint64_t request, std::uint32_t from, std::uint32_t to,
              std::vector<std::uint32_t>& out) const;

 private:
  bool holds(const shm::JournalRecord* r, std::uint64_t request, std::uint64_t& generation) const;
  bool still(const shm::JournalRecord* r, std::uint64_t request, std::uint64_t generation) const;
  const shm::Journal* journal_;
};

}  // namespace wisp::gateway
