#pragma once
#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "services/gateway/text/known_split.hpp"

namespace wisp::text {

/// Cuts text into the pieces inside which BPE merges, as `pre_tokenizer` of a tokenizer.json prescribes it:
/// any number of Split and Digits steps, then ByteLevel. Published patterns are matched by hand
/// (known_split), others by a regex engine, to which the limits below apply. Immutable, so threads may share
/// it.
class PreTokenizer {
 public:
  static constexpr std::size_t kMaxSteps = 32;            // nesting and length of a Sequence together
  static constexpr std::size_t kMaxPatternBytes = 16384;  // compile time of a regex grows with it
  static constexpr std::size_t kWindowBytes =
      256 * 1024;  // one match looks at most so far; a longer piece is cut
  static constexpr unsigned long kMaxRetries = 20'000'000;  // back-tracking steps of one match
  static constexpr unsigned kMaxStack = 4'000'000;          // entries of the matcher's stack, ~60 bytes each
  static constexpr double kMaxCpuSeconds = 10;              // of one split() in all: a hostile pattern's end

  using Range = PieceRange;

  PreTokenizer();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// kUnsupported names the type or option that this build lacks; kInvalid names a broken pattern.
  static Result<PreTokenizer> parse(const nlohmann::json& config);
  /// One step, of a pattern that no file gives.
  static PreTokenizer of(KnownSplit split);

  /// Replaces `out` by the pieces of well-formed `text`, in order, none empty. kExhausted when the pattern
  /// needs more steps, stack or time than the limits allow.
  Status split(std::string_view text, std::vector<Range>& out) const;

  struct Step;

 private:
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace wisp::text
