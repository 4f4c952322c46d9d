#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace wisp::text {

/// One entry of `added_tokens`: text that becomes one id before any BPE.
struct AddedToken {
  std::string content;  ///< UTF-8, never empty
  std::uint32_t id = 0;
  bool special = false;  ///< the file's flag: skipped when decoding
  bool control = false;  ///< special, or written like a control mark (`<|...|>`); never made from user text
  bool normalized = false;   ///< searched in the normalised text, else in the raw text
  bool lstrip = false;       ///< takes the white space to its left along
  bool rstrip = false;       ///< takes the white space to its right along
  bool single_word = false;  ///< counts only where no word character touches it
};

/// A part of a text: an added token, or ordinary text between two of them.
struct Segment {
  std::optional<std::uint32_t> id;  ///< of the added token; nullopt for ordinary text
  std::size_t begin = 0;            ///< byte offsets in the text that was split
  std::size_t end = 0;
};

/// Finds added tokens: leftmost first, the longest of those that begin together.
class AddedTokenMatcher {
 public:
  /// `content` is what to look for; for normalised tokens the normalised form. Empty ones never match.
  void add(std::string_view content, const AddedToken& token);

  /// The longest token whose content stands at `begin`, its options left aside; nullopt for none.
  std::optional<Segment> at(std::string_view text, std::size_t begin) const;

  /// Cuts well-formed `text` into segments without gaps. `keep_control` false leaves control tokens as
  /// ordinary text (they are found, then passed over, as the reference implementation does it).
  std::vector<Segment> split(std::string_view text, bool keep_control) const;

 private:
  struct Rule {
    std::uint32_t id;
    bool control, lstrip, rstrip, single_word;
  };
  struct Node {
    std::int32_t rule = -1;
    std::vector<std::pair<char, std::uint32_t>> next;
  };

  std::uint32_t child(std::uint32_t node, char byte) const;
  const Rule* longest(std::string_view text, std::size_t begin, std::size_t& end) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<Rule> rules_;
  std::array<std::uint32_t, 256> roots_{};  // first byte -> node, 0 for none
};

}  // namespace wisp::text
