#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "services/bench/pairs.hpp"

namespace wisp::bench {

/// What was counted and timed of one request to an engine, and of the drive beside it.
struct EngineTurn {
  bool cold = false;         ///< the engine was started for it: its cache was empty
  double plain_rate = 0.0;   ///< bytes/s of plain direct reads, before and after the request
  double started_s = 0.0;    ///< of a cold one: from before the engine's start to the first token
  double first_s = 0.0;      ///< from the request to the first token
  double decode_s = 0.0;     ///< from the first token to the last
  std::uint64_t prompt = 0;  ///< tokens
  std::uint64_t tokens = 0;  ///< written, the first one included

  std::uint64_t stride = 0;                            ///< bytes of an expert
  std::uint64_t accesses = 0, hits = 0;                ///< experts of decode steps
  std::uint64_t prompt_accesses = 0, prompt_hits = 0;  ///< of the prompt's
  std::uint64_t expert_bytes = 0;                      ///< read, prompt and decode together
  std::uint64_t dense_bytes = 0;                       ///< of all that is no expert
  std::uint64_t dense_left = 0;                        ///< of those, not yet read when the request was sent
  std::uint64_t unique = 0;                            ///< different experts of the prompt; 0 = not recorded
  double expert_wait_s = 0.0;                          ///< of decode steps, asleep until an expert comes

  std::uint64_t missed_bytes() const { return (accesses - hits) * stride; }
  std::uint64_t prompt_bytes() const { return (prompt_accesses - prompt_hits) * stride; }
  double decode_tok_s() const { return static_cast<double>(tokens - 1) / decode_s; }
  std::optional<double> hit_rate() const;
  /// Bytes/s of missed experts while decoding.
  double missed_rate() const { return static_cast<double>(missed_bytes()) / decode_s; }
  /// P1: missed_rate() / plain_rate. Nothing where no expert was missed.
  std::optional<double> drive_share() const;
  /// P12: decode_s / max(I/O, compute). I/O is missed_bytes() at the plain rate, compute what is left of
  /// decode_s without the waits for experts.
  double overlap() const;
  /// P18: expert bytes / those of the prompt's different experts. Nothing without `unique`.
  std::optional<double> read_amplification() const;
  /// P20: first_s / (dense bytes not yet there + the prompt's expert bytes) at the plain rate. The prompt's
  /// expert bytes are those of its different experts, or where they are not known those that it read.
  /// Nothing where there was nothing to read.
  std::optional<double> first_from_request() const;
  /// The same of started_s and all dense bytes. Nothing of an engine that was running.
  std::optional<double> first_from_start() const;

 private:
  std::uint64_t prompt_bound() const { return unique != 0 ? unique * stride : prompt_bytes(); }
};

/// Turns whose counters contradict each other measure something else than what they say. Errors: kCorrupt
/// names the counter and both numbers. Compared are: each turn's expert bytes with its own misses, the
/// experts that decode asked for; of cold turns, which all begin alike, also what they found, and what their
/// prompts asked for and found.
Status check_counters(const std::vector<EngineTurn>& turns);

}  // namespace wisp::bench
