#pragma once
#include <string>
#include <string_view>

namespace wisp::text {

/// Turns the bytes of successive tokens into text: hands out complete characters only and keeps a character
/// that a token cuts until its rest arrives. Bytes that belong to no character become U+FFFD, one for each
/// maximal ill-formed part: the text of Python's decoder with errors="replace". A pure function of the
/// pieces, so that a replay gives the same pieces of text.
class Utf8Stream {
 public:
  /// The text that `bytes` completes; may be empty.
  std::string push(std::string_view bytes);

  /// What an incomplete character at the end of the stream becomes: "" or one U+FFFD. Leaves the stream
  /// empty.
  std::string flush();

 private:
  std::string held_;  // a well-formed beginning of one character, at most 3 bytes
};

}  // namespace wisp::text
