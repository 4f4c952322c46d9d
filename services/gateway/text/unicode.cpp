#include "services/gateway/text/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

namespace wisp::text {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t pos) {
  return static_cast<std::uint8_t>(text[pos]);
}

std::uint32_t combining_class(utf8proc_int32_t c) {
  return static_cast<std::uint32_t>(utf8proc_get_property(c)->combining_class);
}

/// Sorts each run of combining marks by class. utf8proc_decompose does this by insertion, so that a text of
/// a million marks would take hours; a stable sort gives the same order.
void order_marks(std::vector<utf8proc_int32_t>& chars) {
  for (std::size_t i = 0; i < chars.size();) {
    if (combining_class(chars[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < chars.size() && combining_class(chars[end]) != 0) ++end;
    std::stable_sort(
        chars.begin() + static_cast<std::ptrdiff_t>(i), chars.begin() + static_cast<std::ptrdiff_t>(end),
        [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

/// Characters that combine since a Unicode version later than 9, the one whose tables the reference
/// normaliser has: it treats them as ordinary characters, and ids must equal its ids. First and last of each
/// range, ascending.
constexpr std::pair<char32_t, char32_t> kInert[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

bool is_inert(char32_t c) {
  const auto* range = std::upper_bound(std::begin(kInert), std::end(kInert), c,
                                       [](char32_t value, const auto& entry) { return value < entry.first; });
  return range != std::begin(kInert) && c <= std::prev(range)->second;
}

/// Orders and composes decomposed `chars`, appends them to `out` and empties them.
Status compose(std::vector<utf8proc_int32_t>& chars, utf8proc_option_t options, std::string& out) {
  order_marks(chars);
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), options);
  if (length < 0) return exhausted(std::string("normalising text: ") + utf8proc_errmsg(length));
  for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i)
    append_utf8(out, static_cast<char32_t>(chars[i]));
  chars.clear();
  return {};
}

constexpr auto kComposing = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

/// Appends the composed form of `text`, whatever its length.
Status compose_part(std::string_view text, std::string& out) {
  std::vector<utf8proc_int32_t> chars;
  for (std::size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    if (is_inert(c)) {
      WISP_TRY(compose(chars, kComposing, out));
      append_utf8(out, c);
      continue;
    }
    utf8proc_int32_t parts[32];  // the longest canonical decomposition has 4
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32, kComposing, &boundary);
    if (count < 0 || count > 32) return exhausted(std::string("normalising text: ") + utf8proc_errmsg(count));
    chars.insert(chars.end(), parts, parts + count);
  }
  return compose(chars, kComposing, out);
}

/// Which characters stay as they are and never join the one before: no marks, no conjoining jamo, none that
/// is another one composed. Such a character ends what normalising must look at.
class CalmTable {
 public:
  static const CalmTable& get() {
    static const CalmTable table;
    return table;
  }

  bool has(char32_t c) const { return c < 0xC0 || c >= kEnd || calm_[c]; }

 private:
  static constexpr char32_t kEnd = 0x30000;  // beyond are ideographs and what has no properties

  CalmTable() : calm_(kEnd, true) {
    for (char32_t c = 0xC0; c < kEnd; ++c) {
      const bool surrogate = c >= 0xD800 && c < 0xE000;
      const bool jamo =
          (c >= 0x1100 && c < 0x1200) || (c >= 0xA960 && c < 0xA980) || (c >= 0xD7B0 && c < 0xD800);
      calm_[c] = !surrogate && !jamo && !is_mark(c) && (is_hangul(c) || is_itself(c));
    }
  }

  static bool is_mark(char32_t c) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return combining_class(static_cast<utf8proc_int32_t>(c)) != 0 || category == UTF8PROC_CATEGORY_MN ||
           category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
  }
  static bool is_hangul(char32_t c) { return c >= 0xAC00 && c < 0xD7A4; }
  static bool is_itself(char32_t c) {
    if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->decomp_seqindex == UINT16_MAX) return true;
    std::string alone, composed;
    append_utf8(alone, c);
    return compose_part(alone, composed).ok() && composed == alone;
  }

  std::vector<bool> calm_;  // [kEnd]
};

/// How many bytes from `pos` on are ASCII, of at least eight together.
std::size_t ascii_run(std::string_view text, std::size_t pos) {
  std::size_t n = 0;
  for (; pos + n + 8 <= text.size(); n += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + pos + n, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
  }
  return n;
}

}  // namespace

Utf8Step utf8_step(std::string_view text, std::size_t pos) {
  const std::uint8_t first = byte_at(text, pos);
  if (first < 0x80) return {Utf8Kind::kComplete, 1};
  std::size_t length = 0;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {Utf8Kind::kInvalid, 1};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (pos + i >= text.size()) return {Utf8Kind::kIncomplete, i};
    const std::uint8_t next = byte_at(text, pos + i);
    if (next < low || next > high) return {Utf8Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kComplete, length};
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t pos = 0; pos < text.size();) {
    pos += ascii_run(text, pos);
    if (pos == text.size()) break;
    const Utf8Step step = utf8_step(text, pos);
    if (step.kind != Utf8Kind::kComplete) return pos;
    pos += step.size;
  }
  return std::string_view::npos;
}

char32_t next_char(std::string_view text, std::size_t& pos) {
  const std::uint8_t first = byte_at(text, pos++);
  if (first < 0x80) return first;
  const int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
  char32_t c = static_cast<char32_t>(first & (0x3F >> more));
  for (int i = 0; i < more && pos < text.size(); ++i) c = (c << 6) | (byte_at(text, pos++) & 0x3FU);
  return c;
}

char32_t previous_char(std::string_view text, std::size_t& end) {
  --end;
  while (end > 0 && (byte_at(text, end) & 0xC0U) == 0x80U) --end;
  std::size_t pos = end;
  return next_char(text, pos);
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) {
    out.push_back(static_cast<char>(static_cast<std::uint8_t>(byte)));
  };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0U | (c >> 6));
    put(0x80U | (c & 0x3FU));
  } else if (c < 0x10000) {
    put(0xE0U | (c >> 12));
    put(0x80U | ((c >> 6) & 0x3FU));
    put(0x80U | (c & 0x3FU));
  } else {
    put(0xF0U | (c >> 18));
    put(0x80U | ((c >> 12) & 0x3FU));
    put(0x80U | ((c >> 6) & 0x3FU));
    put(0x80U | (c & 0x3FU));
  }
}

bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t c) {
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9)) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_composed(std::string_view text) {
  const CalmTable& calm = CalmTable::get();
  for (std::size_t pos = 0; pos < text.size();) {
    pos += ascii_run(text, pos);
    if (pos < text.size() && !calm.has(next_char(text, pos))) return false;
  }
  return true;
}

Result<std::string> nfc(std::string_view text) {
  const CalmTable& calm = CalmTable::get();
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;                       // bytes of `text` that are in `out`
  std::size_t last = std::string_view::npos;  // where the calm character before `pos` begins
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t at = pos;
    if (calm.has(next_char(text, pos))) {
      last = at;
      continue;
    }
    // What is not calm is normalised with the character before it, to which it may join.
    const std::size_t begin = last == std::string_view::npos ? at : last;
    for (std::size_t next = pos; next < text.size() && !calm.has(next_char(text, next));) pos = next;
    out.append(text.substr(done, begin - done));
    WISP_TRY(compose_part(text.substr(begin, pos - begin), out));
    done = pos;
    last = std::string_view::npos;
  }
  out.append(text.substr(done));
  return out;
}

}  // namespace wisp::text
