#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace wisp::text {

/// SentencePiece's way to keep spaces: "▁" (U+2581) stands for one, and may be put before a text.
struct SpaceMarks {
  enum class Prepend { kNever, kFirst, kAlways };
  Prepend prepend = Prepend::kNever;
  bool unless_there = false;  ///< not before a text that begins with a mark
  bool split = false;         ///< each mark begins a piece
  bool words = false;         ///< a mark after something else begins a piece, for no merge reaches across

  static constexpr std::string_view kMark = "\xE2\x96\x81";

  /// Reads a tokenizer.json's `normalizer` (Prepend and Replace) and `pre_tokenizer` (Metaspace, or none);
  /// either may be null. Errors: kUnsupported for any other step.
  static Result<SpaceMarks> parse(const nlohmann::json* normalizer, const nlohmann::json* pre_tokenizer);

  /// `text` with marks. `first`: it begins the whole input.
  std::string apply(std::string_view text, bool first) const;
  /// A marked text as pieces, views into it.
  void cut(std::string_view marked, std::vector<std::string_view>& out) const;

  /// The bytes that a vocabulary entry stands for: marks are spaces, "<0x41>" is a byte.
  static std::string bytes_of(std::string_view entry);
};

}  // namespace wisp::text
