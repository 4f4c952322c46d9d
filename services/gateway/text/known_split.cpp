#include "services/gateway/text/known_split.hpp"

#include <iterator>
#include <string>

#include "services/gateway/text/char_class.hpp"

namespace wisp::text {
namespace {

// Each matcher takes where a match shall begin and gives where it ends: the same end that a back-tracking
// engine finds, alternatives tried in the pattern's order. `p` where there is no match.

/// The text from here to the end of what is split.
struct Span {
  const char* end;
  const CharTable& table = CharTable::get();

  CharSet at(const char* p, const char*& next) const { return table.at(p, next); }
  /// The set of the character at `p`, empty at the end.
  CharSet peek(const char* p) const {
    const char* next = nullptr;
    return p < end ? table.at(p, next) : 0;
  }
  /// Past the longest run of characters in `set` from `p` on, at most `most` of them.
  const char* run(const char* p, CharSet set, std::size_t most = ~std::size_t{0}) const {
    const char* next = nullptr;
    for (; p < end && most > 0 && (at(p, next) & set) != 0; --most) p = next;
    return p;
  }
  /// Past CR, LF, and '/' where `slash`.
  const char* line_ends(const char* p, bool slash = false) const {
    while (p < end && (*p == '\r' || *p == '\n' || (slash && *p == '/'))) ++p;
    return p;
  }
};

/// (?i:'s|'t|'re|'ve|'m|'ll|'d), or without (?i:) where `any_case` is false.
const char* contraction(Span s, const char* p, bool any_case) {
  if (s.end - p < 2 || *p != '\'') return p;
  const auto lower = [any_case](char c) {
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(p[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
  if (s.end - p < 3) return p;
  // U+017F, a long s, is an s in another case.
  if (any_case && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
  const char second = lower(p[2]);
  const bool two =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return two ? p + 3 : p;
}

/// \s*[\r\n]+|\s+(?!\S)|\s+ , without its first part where `lines` is false.
const char* white_space(Span s, const char* p, bool lines) {
  const char* last = p;              // where the run's last character begins
  const char* after_line = nullptr;  // past the run's last CR or LF
  const char* at = p;
  const char* next = nullptr;
  for (CharSet set; at < s.end && ((set = s.at(at, next)) & kSpaces) != 0; at = next) {
    last = at;
    if (lines && (set & set_of(CharClass::kNewline)) != 0) after_line = next;
  }
  if (after_line != nullptr) return after_line;
  // A space that stands before a word is left to it, unless it is the only one.
  return at == s.end || last == p ? at : last;
}

/// GPT-2's: 's|...| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const char* gpt2(Span s, const char* p) {
  if (const char* end = contraction(s, p, false); end != p) return end;
  const char* word = *p == ' ' && p + 1 < s.end ? p + 1 : p;
  const CharSet set = s.peek(word);
  if ((set & kLetters) != 0) return s.run(word, kLetters);
  if ((set & kNumbers) != 0) return s.run(word, kNumbers);
  if ((set & kSpaces) == 0) return s.run(word, ~(kSpaces | kLetters | kNumbers | kHan));
  return white_space(s, p, false);
}

/// (?i:'s|...)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,kDigits}| ?[^\sW\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ where W
/// is kWord: letters, or letters and marks.
template <CharSet kWord, std::size_t kDigits>
const char* words(Span s, const char* p) {
  if (const char* end = contraction(s, p, true); end != p) return end;
  const char* next = nullptr;
  const CharSet set = s.at(p, next);
  if ((set & kWord) != 0) return s.run(next, kWord);
  if ((set & (kNumbers | set_of(CharClass::kNewline))) == 0 && (s.peek(next) & kWord) != 0)
    return s.run(next, kWord);
  if ((set & kNumbers) != 0) return s.run(p, kNumbers, kDigits);
  constexpr CharSet kSign = ~(kSpaces | kWord | kNumbers | kHan);
  const char* sign = *p == ' ' ? next : p;
  if (const char* end = s.run(sign, kSign); end != sign) return s.line_ends(end);
  return white_space(s, p, true);
}

constexpr CharSet kUpperish = set_of(CharClass::kUpper) | set_of(CharClass::kLetter) | kMarks;
constexpr CharSet kLowerish = set_of(CharClass::kLower) | set_of(CharClass::kLetter) | kMarks;

/// [^\r\n\p{L}\p{N}]?U*l+(?i:'s|...)?|[^\r\n\p{L}\p{N}]?U+l*(?i:'s|...)? where U is
/// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and l [\p{Ll}\p{Lm}\p{Lo}\p{M}], both without Han where `no_han`.
const char* cased(Span s, const char* p, bool no_han) {
  const auto in = [no_han](CharSet set, CharSet wanted) {
    return (set & wanted) != 0 && !(no_han && (set & kHan) != 0);
  };
  const char* next = nullptr;
  const CharSet first = s.at(p, next);
  // A mark may be the prefix or a part of the word: the end is the same.
  const bool prefix = (first & (kLetters | kMarks | kNumbers | set_of(CharClass::kNewline))) == 0;
  const char* const word = prefix ? next : p;
  const char* at = word;
  const char* lowerish_end = nullptr;  // past the last character so far that is in both sets
  CharSet set = 0;
  for (; at < s.end && in(set = s.at(at, next), kUpperish); at = next)
    if (in(set, kLowerish)) lowerish_end = next;
  const char* end = at;
  if (at < s.end && in(set, kLowerish)) {
    for (end = next; end < s.end && in(s.at(end, next), kLowerish);) end = next;
  } else if (lowerish_end != nullptr) {
    end = lowerish_end;  // U* gives back what l+ needs
  } else if (at == word) {
    return p;
  }
  return contraction(s, end, true);
}

/// o200k's; Kimi's, with a run of Han first and without the '/' in the last, where kKimi.
template <bool kKimi>
const char* cased_words(Span s, const char* p) {
  if constexpr (kKimi)
    if ((s.peek(p) & kHan) != 0) return s.run(p, kHan);
  if (const char* end = cased(s, p, kKimi); end != p) return end;
  if (const char* end = s.run(p, kNumbers, 3); end != p) return end;
  constexpr CharSet kSign = ~(kSpaces | kLetters | kNumbers | kHan);
  const char* sign = *p == ' ' ? p + 1 : p;
  if (const char* end = s.run(sign, kSign); end != sign) return s.line_ends(end, !kKimi);
  return white_space(s, p, true);
}

bool ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// DeepSeek V3's third: a sign of ASCII and its letters|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*| white space. Some characters begin no match.
const char* deepseek_words(Span s, const char* p) {
  const char* next = nullptr;
  const CharSet set = s.at(p, next);
  constexpr CharSet kWord = kLetters | kMarks;
  const auto first = static_cast<std::uint8_t>(*p);
  if (first < 0x80 && (set & kSigns) != 0 && next < s.end && ascii_letter(*next)) {
    while (next < s.end && ascii_letter(*next)) ++next;
    return next;
  }
  if ((set & kWord) != 0) return s.run(next, kWord);
  if ((set & (kSigns | set_of(CharClass::kNewline))) == 0 && (s.peek(next) & kWord) != 0)
    return s.run(next, kWord);
  const char* sign = *p == ' ' ? next : p;
  if (const char* end = s.run(sign, kSigns); end != sign) return s.line_ends(end);
  return (set & kSpaces) != 0 ? white_space(s, p, true) : p;
}

const char* three_digits(Span s, const char* p) {
  return s.run(p, kNumbers, 3);
}

/// [一-龥぀-ゟ゠-ヿ]
bool is_deepseek_cjk(const char* p) {
  const auto b = [p](int i) { return static_cast<std::uint32_t>(static_cast<std::uint8_t>(p[i])); };
  if (b(0) < 0xE3 || b(0) > 0xE9) return false;
  const std::uint32_t c = ((b(0) & 0x0FU) << 12) | ((b(1) & 0x3FU) << 6) | (b(2) & 0x3FU);
  return (c >= 0x3040 && c <= 0x30FF) || (c >= 0x4E00 && c <= 0x9FA5);
}

const char* deepseek_cjk(Span s, const char* p) {
  while (p < s.end && is_deepseek_cjk(p)) p += 3;
  return p;
}

template <const char* (*kMatch)(Span, const char*)>
void split(std::string_view text, std::size_t base, std::vector<PieceRange>& out) {
  const char* const begin = text.data();
  const Span span{begin + text.size()};
  const auto push = [&](const char* from, const char* to) {
    if (from != to)
      out.push_back(
          {base + static_cast<std::size_t>(from - begin), base + static_cast<std::size_t>(to - begin)});
  };
  const char* gap = begin;  // where what no match has taken begins
  for (const char* p = begin; p < span.end;) {
    const char* const end = kMatch(span, p);
    if (end == p) {
      span.at(p, p);
      continue;
    }
    push(gap, p);
    push(p, end);
    gap = p = end;
  }
  push(gap, span.end);
}

/// DeepSeek V3's three patterns in one pass: digits, then Chinese and kana, then words inside of each part.
void deepseek(std::string_view text, std::size_t base, std::vector<PieceRange>& out) {
  const char* const begin = text.data();
  const Span span{begin + text.size()};
  const auto split_words = [&](const char* from, const char* to) {
    const std::string_view part(from, static_cast<std::size_t>(to - from));
    if (from != to) split<deepseek_words>(part, base + static_cast<std::size_t>(from - begin), out);
  };
  const char* rest = begin;
  for (const char* p = begin; p < span.end;) {
    const char* next = nullptr;
    const CharSet set = span.at(p, next);
    const char* const cjk = deepseek_cjk(span, p);
    if ((set & kNumbers) == 0 && cjk == p) {
      p = next;
      continue;
    }
    split_words(rest, p);
    const char* const end = cjk != p ? cjk : three_digits(span, p);
    split_words(p, end);
    rest = p = end;
  }
  split_words(rest, span.end);
}

#define WISP_CASED(NO_HAN)                                                                            \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})" NO_HAN R"(]*[\p{Ll}\p{Lm}\p{Lo}\p{M})" NO_HAN \
  R"(]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})" NO_HAN        \
  R"(]+[\p{Ll}\p{Lm}\p{Lo}\p{M})" NO_HAN R"(]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+)"
#define WISP_WHITE R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"

struct Known {
  std::string_view pattern;
  KnownSplit split;
};

constexpr std::string_view kDigits3 = R"(\p{N}{1,3})";
constexpr std::string_view kDeepseekCjk = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" WISP_WHITE;

constexpr Known kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", split<gpt2>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" WISP_WHITE,
     split<words<kLetters, 1>>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" WISP_WHITE,
     split<words<kLetters, 3>>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" WISP_WHITE,
     split<words<kLetters | kMarks, 1>>},
    {WISP_CASED("") R"([\r\n/]*)" WISP_WHITE, split<cased_words<false>>},
    {R"([\p{Han}]+|)" WISP_CASED(R"(&&[^\p{Han}])") R"([\r\n]*)" WISP_WHITE, split<cased_words<true>>},
    {kDigits3, split<three_digits>},
    {kDeepseekCjk, split<deepseek_cjk>},
    {kDeepseekWords, split<deepseek_words>},
};

/// Some files have a line end itself where others spell it.
std::string spelt(std::string_view pattern) {
  std::string out;
  for (const char c : pattern) {
    if (c == '\r' || c == '\n')
      out += c == '\r' ? "\\r" : "\\n";
    else
      out.push_back(c);
  }
  return out;
}

}  // namespace

KnownSplit known_split(std::string_view pattern) {
  const std::string text = spelt(pattern);
  for (const Known& known : kKnown)
    if (known.pattern == text) return known.split;
  return nullptr;
}

KnownSplit known_split(const std::vector<std::string_view>& patterns, std::size_t& count) {
  count = 0;
  if (patterns.empty()) return nullptr;
  if (patterns.size() >= 3 && patterns[0] == kDigits3 && patterns[1] == kDeepseekCjk &&
      spelt(patterns[2]) == kDeepseekWords) {
    count = 3;
    return deepseek;
  }
  const KnownSplit one = known_split(patterns[0]);
  count = one != nullptr ? 1 : 0;
  return one;
}

KnownSplit kimi_split() {
  return split<cased_words<true>>;
}

}  // namespace wisp::text
