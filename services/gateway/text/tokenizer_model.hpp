#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "services/gateway/text/added_tokens.hpp"
#include "services/gateway/text/bpe.hpp"
#include "services/gateway/text/pre_tokenizer.hpp"
#include "services/gateway/text/space_marks.hpp"

namespace wisp::text {

/// What Tokenizer holds once a file is read. Never moved after filling: the maps hold views into `bytes`.
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

  std::string bytes;              // of all pieces, one after the other; reserved once, never reallocated
  std::vector<Piece> pieces;      // [vocab_size]
  std::size_t longest_piece = 1;  // bytes
  std::unordered_map<std::string_view, std::uint32_t> by_bytes;  // the pieces that BPE may produce
  std::vector<AddedToken> added;
  std::unordered_map<std::string_view, std::uint32_t> added_ids;  // views into `added`
  AddedTokenMatcher raw;                                          // added tokens searched before normalising
  AddedTokenMatcher normalized;                                   // and after it
  AddedTokenMatcher control;  // control tokens only, by their text as written
  PreTokenizer pre_tokenizer;
  std::optional<SpaceMarks>
      marks;  // in place of the pre-tokenizer and of bytes: characters, else bytes, are merged
  std::unordered_map<std::string, std::uint32_t> characters;  // with `marks`: the ids of single characters
  bool strip_space = false;                                   // decode() drops one space at the beginning
  Bpe bpe;
  bool nfc = false;
  bool ignore_merges = false;

  std::string_view piece(std::uint32_t id) const {
    return std::string_view(bytes).substr(pieces[id].offset, pieces[id].size);
  }
};

/// Fills `model` from the text of a tokenizer.json; see Tokenizer::load for the errors.
Status read_tokenizer_json(std::string_view json, TokenizerModel& model);

}  // namespace wisp::text
