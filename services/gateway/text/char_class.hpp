#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace wisp::text {

/// What the published split patterns ask of a character, by the Unicode version of the reference (16), which
/// need not be the one of this system's libraries.
enum class CharClass : std::uint8_t {
  kOther,    ///< controls, formats, private and unassigned ones
  kSpace,    ///< white space but line ends
  kNewline,  ///< CR and LF
  kUpper,    ///< Lu, Lt
  kLower,    ///< Ll
  kLetter,   ///< Lm, Lo
  kMark,     ///< M
  kNumber,   ///< N
  kPunct,    ///< P
  kSymbol,   ///< S
};

/// A set of classes: bit n is class n; bit 16 is the script Han, which cuts across them.
using CharSet = std::uint32_t;
constexpr CharSet kHan = 1U << 16;

constexpr CharSet set_of(CharClass c) {
  return 1U << static_cast<unsigned>(c);
}
constexpr CharSet kSpaces = set_of(CharClass::kSpace) | set_of(CharClass::kNewline);
constexpr CharSet kLetters =
    set_of(CharClass::kUpper) | set_of(CharClass::kLower) | set_of(CharClass::kLetter);
constexpr CharSet kMarks = set_of(CharClass::kMark);
constexpr CharSet kNumbers = set_of(CharClass::kNumber);
constexpr CharSet kSigns = set_of(CharClass::kPunct) | set_of(CharClass::kSymbol);

/// The table; immutable once made.
class CharTable {
 public:
  /// Made at the first call, from any thread; lives as long as the program.
  static const CharTable& get();

  /// The class of `c` as a set, with kHan where it applies. Values above U+10FFFF are kOther.
  CharSet of(char32_t c) const {
    const std::size_t block = c >> kShift;
    const std::uint8_t code = block < kBlocks ? cells_[index_[block] + (c & kMask)] : 0;
    return (1U << (code & 15U)) | (static_cast<CharSet>(code & 16U) << 12);
  }

  /// The character that begins at `p` in well-formed UTF-8: its set, and in `next` where the one after
  /// begins.
  CharSet at(const char* p, const char*& next) const {
    const auto first = static_cast<std::uint8_t>(*p);
    if (first < 0x80) {
      next = p + 1;
      return ascii_[first];
    }
    const auto more = [p](int i) { return static_cast<char32_t>(static_cast<std::uint8_t>(p[i]) & 0x3FU); };
    if (first < 0xE0) {
      next = p + 2;
      return of(((first & 0x1FU) << 6) | more(1));
    }
    if (first < 0xF0) {
      next = p + 3;
      return of(((first & 0x0FU) << 12) | (more(1) << 6) | more(2));
    }
    next = p + 4;
    return of(((first & 0x07U) << 18) | (more(1) << 12) | (more(2) << 6) | more(3));
  }

 private:
  static constexpr unsigned kShift = 7;
  static constexpr std::size_t kMask = (1U << kShift) - 1;
  static constexpr std::size_t kBlocks = 0x110000 >> kShift;

  CharTable();

  std::array<CharSet, 128> ascii_{};
  std::array<std::uint32_t, kBlocks> index_{};  // where a block begins in cells_
  std::vector<std::uint8_t> cells_;             // equal blocks are there once
};

}  // namespace wisp::text
