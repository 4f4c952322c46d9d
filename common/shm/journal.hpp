#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shm/region.hpp"

namespace wisp::shm {

/// Why a sequence ended. Part of the commit word: only append.
enum class Finish : std::uint32_t {
  kNone = 0,
  kStop = 1,
  kLength = 2,
  kStopString = 3,
  kCancelled = 4,
  kError = 5
};

inline constexpr std::uint32_t kMaxEos = 16;
enum RequestFlags : std::uint32_t {
  kIgnoreEos = 1,   ///< end-of-sequence ids are tokens like others
  kWriteLogits = 2  ///< compute writes the rows of this request into the logits directory
};

/// Everything that decides an answer beside the weights and the prompt. Plain data: travels in edge 1's arena
/// and stands in the journal.
struct RequestParams {
  std::uint64_t seed = 0;
  float temperature = 0.0f;  ///< 0 = greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::uint32_t top_k = 0;  ///< 0 = off
  std::uint32_t flags = 0;  ///< RequestFlags
  std::uint32_t max_tokens = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t eos_count = 0;
  std::uint32_t eos[kMaxEos] = {};
  std::uint64_t created_s = 0;      ///< Unix time of the request, as the API shows it
  float presence_penalty = 0.0f;    ///< off a logit whose token the answer has
  float frequency_penalty = 0.0f;   ///< the same, for each time that it has it
  float repetition_penalty = 1.0f;  ///< divides a logit whose token prompt or answer has, or multiplies
                                    ///< one below 0
  std::uint32_t logprobs = 0;       ///< 1 + how many likeliest tokens are told beside each; 0: none are

  bool penalises() const {
    return presence_penalty != 0.0f || frequency_penalty != 0.0f || repetition_penalty != 1.0f;
  }

  /// Whether `token` ends the answer.
  bool ends_at(std::uint32_t token) const {
    if ((flags & kIgnoreEos) != 0) return false;
    for (std::uint32_t i = 0; i < eos_count; ++i)
      if (eos[i] == token) return true;
    return false;
  }
};

/// The payload of kSubmit: params, then prompt_tokens ids (u32).
struct SubmitMessage {
  RequestParams params;
};

/// The commit word: token, finish and checksum become true together by one release store, and with them what
/// is told of the token.
/// The crc is crc32c over `params`, the prompt and the first `length` tokens; what is told of them is not in
/// it.
struct CommitWord {
  std::uint32_t length = 0;  ///< generated tokens, 24 bits
  Finish finish = Finish::kNone;
  std::uint32_t crc = 0;

  std::uint64_t pack() const {
    return std::uint64_t{length & 0xffffffu} << 40 |
           std::uint64_t{static_cast<std::uint32_t>(finish) & 0xffu} << 32 | crc;
  }
  static CommitWord unpack(std::uint64_t w) {
    return {static_cast<std::uint32_t>(w >> 40), static_cast<Finish>(w >> 32 & 0xffu),
            static_cast<std::uint32_t>(w)};
  }
};

/// Most likeliest tokens that may be told beside a token.
inline constexpr std::uint32_t kMostTopLogprobs = 20;
/// Words of 32 bits that are told of a token where RequestParams::logprobs is `asked`: its own
/// log-probability (a float), then id and log-probability of each of the likeliest, the likeliest first.
constexpr std::uint32_t logprob_words(std::uint32_t asked) {
  return asked == 0 ? 0 : 2 * asked - 1;
}
/// The least that is ever told, also where the model rules a token out: JSON has no word for an infinite
/// number (OpenAI's API has the same).
inline constexpr float kLeastLogprob = -9999.0f;
/// The id of a likeliest token that there is none of: the vocabulary has fewer.
inline constexpr std::uint32_t kNoToken = ~0u;

/// What a request ended with, zero-terminated.
struct ErrorText {
  alignas(std::uint32_t) char bytes[256];
};

/// One sequence. Written by the router alone. A record is free while `request` is 0. Opening: generation odd,
/// contents, commit word, request, generation even. Recycling: request = 0. Other processes read it by
/// JournalReader, which takes the generation before and after (seqlock) and checks the request id; so every
/// plain word that they read is written by shared_words.hpp.
struct JournalRecord {
  alignas(kLine) std::atomic<std::uint64_t> generation;
  std::atomic<std::uint64_t> request;  ///< gateway epoch << 32 | counter; never reused
  std::atomic<std::uint64_t> commit;   ///< CommitWord
  /// Positions whose KV rows are in region `kv` of generation `kv_generation`. Advances during prefill, so
  /// that a storm of kills cannot stop progress; rows from here on may be half written.
  std::atomic<std::uint32_t> kv_len;
  std::atomic<std::uint32_t> kv_generation;
  std::atomic<std::uint32_t> admitted;     ///< 1 once the page list is written
  std::atomic<std::uint32_t> adopted_by;   ///< gateway epoch that serves it now
  std::uint64_t order;                     ///< admission is first come, first served by this number
  std::atomic<std::uint64_t> finished_ns;  ///< engine time of the finish
  std::uint32_t page_count;                ///< KV pages reserved for prompt and max_tokens
  std::uint32_t reserved;
  RequestParams params;
  ErrorText error;  ///< written before a commit word with Finish::kError
};

/// The region `journal`: the commit point of every token, and all that a new router knows.
struct Journal {
  RegionHeader region;
  std::uint32_t records;   ///< written by the launcher before any stage starts, as the five below
  std::uint32_t capacity;  ///< ids a record can hold: prompt and answer
  std::uint32_t pages_per_record;
  std::uint32_t logprobs;  ///< the largest RequestParams::logprobs that there is room for; 0: none
  std::uint64_t records_offset;
  std::uint64_t stride;
  std::uint64_t profile_hash;  ///< a journal is resumed under the same numerics only
  std::atomic<std::uint64_t> next_order;

  JournalRecord* record(std::uint32_t i) {
    return reinterpret_cast<JournalRecord*>(reinterpret_cast<char*>(this) + records_offset + i * stride);
  }
  const JournalRecord* record(std::uint32_t i) const {
    return reinterpret_cast<const JournalRecord*>(reinterpret_cast<const char*>(this) + records_offset +
                                                  i * stride);
  }
  /// ids[0, prompt_tokens) is the prompt, then the generated tokens. [capacity]
  static std::uint32_t* ids(JournalRecord* r) {
    return reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(r) + sizeof(JournalRecord));
  }
  static const std::uint32_t* ids(const JournalRecord* r) {
    return reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const char*>(r) + sizeof(JournalRecord));
  }
  std::uint32_t* pages(JournalRecord* r) const { return ids(r) + capacity; }
  const std::uint32_t* pages(const JournalRecord* r) const { return ids(r) + capacity; }
  /// What is told of the answer's token `n`: logprob_words() of the request's, in a room of the journal's
  /// own. [capacity] such rooms; there is none where `logprobs` is 0.
  std::uint32_t* told(JournalRecord* r, std::uint32_t n) const {
    return pages(r) + pages_per_record + std::size_t{n} * logprob_words(logprobs);
  }
  const std::uint32_t* told(const JournalRecord* r, std::uint32_t n) const {
    return pages(r) + pages_per_record + std::size_t{n} * logprob_words(logprobs);
  }
};

/// `logprobs`: room in each record, as Journal has it.
std::uint64_t journal_size(std::uint32_t records, std::uint32_t capacity, std::uint32_t logprobs = 0);
/// Initialises a zeroed region (launcher only).
void init_journal(void* base, std::uint32_t records, std::uint32_t capacity, std::uint64_t profile_hash,
                  std::uint64_t run_id, std::uint32_t logprobs = 0);

/// crc of a record's first `length` generated tokens, as the commit word carries it.
std::uint32_t journal_crc(const JournalRecord* r, std::uint32_t length);
/// Extends a crc by the next token.
std::uint32_t journal_crc_extend(std::uint32_t crc, std::uint32_t token);
/// Whether a record's numbers can be believed: lengths within capacity, pages in range, crc right. A router
/// that finds otherwise treats the region as damaged.
bool journal_record_valid(const Journal* j, const JournalRecord* r, std::uint32_t kv_pages);

/// The region `kv.0`: pages of 16 positions for every layer. Page layout: for each layer, K as
/// [kv_heads][head_dim][16] then V as [kv_heads][16][head_dim], or with latent attention [kv_rank + rope][16]
/// and index keys [head_dim][16]; numbers of `format`. Where a draft head drafts, each page ends with its
/// rows behind the model's last norm, [16][hidden] bf16. Written by compute alone.
struct Kv {
  RegionHeader region;
  std::uint32_t pages;   ///< written by the launcher before any stage starts, as the three below
  std::uint32_t format;  ///< kernels::KvFormat of every number
  std::uint64_t page_bytes;
  std::uint64_t pages_offset;

  std::byte* page(std::uint32_t i) {
    return reinterpret_cast<std::byte*>(this) + pages_offset + std::uint64_t{i} * page_bytes;
  }
  const std::byte* page(std::uint32_t i) const {
    return reinterpret_cast<const std::byte*>(this) + pages_offset + std::uint64_t{i} * page_bytes;
  }
};
std::uint64_t kv_size(std::uint32_t pages, std::uint64_t page_bytes);
void init_kv(void* base, std::uint32_t pages, std::uint32_t format, std::uint64_t page_bytes,
             std::uint64_t run_id, std::uint64_t generation);

}  // namespace wisp::shm
