#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "services/gateway/text/added_tokens.hpp"
#include "services/gateway/text/bpe.hpp"
#include "services/gateway/text/piece_table.hpp"
#include "services/gateway/text/pre_tokenizer.hpp"
#include "services/gateway/text/space_marks.hpp"

namespace wisp::text {

/// What Tokenizer holds once a file is read. Never moved after filling: `added_ids` holds views into `added`.
struct TokenizerModel {
  TokenizerModel() = default;
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;

  /// Where the bytes of an id lie in `bytes`.
  struct Piece {
    std::uint32_t offset = 0;
    std::uint32_t size = 0;
    bool used = false;
    bool special = false;
    bool control = false;
  };

  std::string bytes;              // of all pieces, one after the other
  std::vector<Piece> pieces;      // [vocab_size]
  std::size_t longest_piece = 1;  // bytes
  PieceTable
      whole;  // pieces that become one id as they stand, so that nothing need be merged; none is control
  std::vector<AddedToken> added;
  std::unordered_map<std::string_view, std::uint32_t> added_ids;  // views into `added`
  AddedTokenMatcher raw;                                          // added tokens searched before normalising
  AddedTokenMatcher normalized;                                   // and after it
  AddedTokenMatcher control;  // control tokens only, by their text as written
  PreTokenizer pre_tokenizer;
  std::optional<SpaceMarks>
      marks;                 // in place of the pre-tokenizer and of bytes: characters, else bytes, are merged
  PieceTable characters;     // with `marks`: the ids of single characters
  bool strip_space = false;  // decode() drops one space at the beginning
  bool cut_long = false;     // Kimi's cuts of long texts come first
  Bpe bpe;
  std::vector<std::uint32_t> first;  ///< what the post-processor writes before a text
  bool nfc = false;
  bool ignore_merges = false;

  /// With `marks`: replaces `ids` by those of a marked text's characters, or of their bytes where the
  /// vocabulary lacks one.
  void first_ids(std::string_view marked, std::vector<std::uint32_t>& ids) const {
    ids.clear();
    for (std::size_t at = 0; at < marked.size();) {
      const auto lead = static_cast<std::uint8_t>(marked[at]);
      const std::size_t n = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      const std::uint32_t known = characters.find(marked.substr(at, n));
      if (known != PieceTable::kNone)
        ids.push_back(known);
      else
        for (const char byte : marked.substr(at, n))
          ids.push_back(bpe.byte_id(static_cast<std::uint8_t>(byte)));
      at += n;
    }
  }

  std::string_view piece(std::uint32_t id) const {
    return std::string_view(bytes).substr(pieces[id].offset, pieces[id].size);
  }
};

/// Fills `model` from the text of a tokenizer.json; see Tokenizer::load for the errors.
Status read_tokenizer_json(std::string_view json, TokenizerModel& model);

/// Fills `model` from Kimi's two files; see Tokenizer::load_tiktoken.
Status read_tiktoken(std::string_view ranks, std::string_view config, TokenizerModel& model);

}  // namespace wisp::text
