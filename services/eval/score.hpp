#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "wisp/kernels/kv_format.hpp"

namespace wisp::eval {

/// What the window is where nobody asks for another: so many positions, or all that the model has.
inline constexpr std::uint32_t kDefaultWindow = 512;

struct ScoreOptions {
  std::string model;                      ///< a converted folder
  std::uint32_t window = kDefaultWindow;  ///< longer lines are cut into blocks of so many, each for itself
  std::uint32_t threads = 1;
  std::string profile = "auto";  ///< auto (the model's own), exact, fast
  bool against_exact = false;    ///< computes each row in `exact` (KV in f32) too, and compares
  kernels::KvFormat kv = kernels::KvFormat::kF32;
};

/// Tokens that follow each other, and the line of the file that they stand in (from 1).
struct ScoredLine {
  std::size_t number = 1;
  std::vector<std::uint32_t> ids;
};

/// What a model makes of given tokens, each predicted from those before it.
struct Score {
  std::string profile;              ///< in which it was computed
  std::uint64_t tokens = 0;         ///< predicted: all but the first of each window
  double nats = 0.0;                ///< sum of -ln p
  double exact_nats = 0.0;          ///< the same of `exact`; this and the rest where it was asked for
  double divergence = 0.0;          ///< sum of KL(exact || this), nats
  std::uint64_t same_first = 0;     ///< rows whose most likely token is that of `exact`
  double largest_difference = 0.0;  ///< of a logit
};

/// Scores lines of ids, teacher-forced. Holds the dense part in memory, a window of KV and a few experts,
/// beside no `--ram`. Errors: those of load_manifest; kInvalid (an id
/// outside the vocabulary, with its line; a window beyond the model's positions), kExhausted.
/// `progress` is called with tokens done and in all.
Result<Score> score(const ScoreOptions& options, const std::vector<ScoredLine>& lines,
                    const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace wisp::eval
