#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace wisp::text {

/// A piece: byte offsets in the text.
struct PieceRange {
  std::size_t begin;
  std::size_t end;
};

/// Cuts well-formed `text` as a pattern does with behaviour Isolated: its matches and what lies between them
/// are pieces. Appends them to `out`, `base` added to their offsets; none is empty. Linear in the text, needs
/// no memory but `out`.
using KnownSplit = void (*)(std::string_view text, std::size_t base, std::vector<PieceRange>& out);

/// The hand-written form of a published split pattern: many times faster than a regex engine, without its
/// limits, and by the reference's Unicode version. Null for any other pattern.
KnownSplit known_split(std::string_view pattern);

/// The same for patterns applied one after the other, each to the pieces of the one before: `count` gets how
/// many of `patterns` (from the first on) the result stands for, 0 with null.
KnownSplit known_split(const std::vector<std::string_view>& patterns, std::size_t& count);

/// The pattern of Kimi's tokenizer, which no file of a checkpoint has.
KnownSplit kimi_split();

}  // namespace wisp::text
