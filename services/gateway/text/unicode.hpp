#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace wisp::text {

/// What stands at one place of a byte string.
enum class Utf8Kind : std::uint8_t {
  kComplete,    ///< a whole, well-formed character
  kIncomplete,  ///< a well-formed beginning that the end of the input cuts off
  kInvalid,     ///< bytes that no character contains
};

/// One step of a UTF-8 scan. `size` in bytes is >= 1; for kInvalid it is the maximal ill-formed part, which
/// one U+FFFD stands for (Python's errors="replace" and Rust's lossy conversion agree on it).
struct Utf8Step {
  Utf8Kind kind;
  std::size_t size;
};

/// Classifies what stands at `pos` (< text.size()).
Utf8Step utf8_step(std::string_view text, std::size_t pos);

/// Byte offset of the first thing that is not UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text);

/// The character at `pos` of well-formed text; advances `pos` past it.
char32_t next_char(std::string_view text, std::size_t& pos);

/// The character that ends at `end` (> 0) of well-formed text; moves `end` to its first byte.
char32_t previous_char(std::string_view text, std::size_t& end);

/// Appends `c` as UTF-8.
void append_utf8(std::string& out, char32_t c);

/// Unicode White_Space.
bool is_space(char32_t c);

/// General category N (Nd, Nl, No).
bool is_numeric(char32_t c);

/// What `\w` means in a Unicode regex: letters, marks, digits, connectors and joiners.
bool is_word(char32_t c);

/// True where nfc() would give the same text back, and in rare cases false although it would. Well-formed
/// text.
bool is_composed(std::string_view text);

/// Canonical composition of well-formed text by the tables of Unicode 9, as the reference tokenizers have it.
/// n log n in the worst case, also for a long run of combining marks. kExhausted when memory does not
/// suffice.
Result<std::string> nfc(std::string_view text);

}  // namespace wisp::text
