#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "services/gateway/text/tokenizer_model.hpp"

/// What the readers of the forms of a vocabulary share.
namespace wisp::text {

/// A text from a file, short enough for a message.
std::string shown(std::string_view text);

/// The member, or null where there is none or it is null.
const nlohmann::json* member(const nlohmann::json& object, const char* name);

/// The member's value, false where there is none. kInvalid for anything but true and false.
Result<bool> flag(const nlohmann::json& object, const char* name);

/// An id within Tokenizer::kMaxVocab; kInvalid names `token` otherwise.
Result<std::uint32_t> token_id(const nlohmann::json& value, std::string_view token);

/// Adds the bytes of a token under its id. kInvalid where the id is taken; `name` is how the file calls it.
Status place(TokenizerModel& model, std::uint32_t id, std::string_view bytes, std::string_view name);

/// An entry of `added_tokens` (with an id) or of `added_tokens_decoder`, whose id is its key.
Result<AddedToken> read_added_token(const nlohmann::json& entry,
                                    std::optional<std::uint32_t> id = std::nullopt);

/// Places an added token and appends it to `model.added`; `known`: its id in the vocabulary, which must
/// agree.
Status add_token(std::optional<std::uint32_t> known, AddedToken token, TokenizerModel& model);

/// After the last add_token: fills the matchers. kInvalid where a text stands there twice.
Status index_added_tokens(TokenizerModel& model);

/// `added_tokens` of a tokenizer.json, placed and indexed; `vocab` is its model.vocab.
Status read_added_tokens(const nlohmann::json& root, const nlohmann::json& vocab, TokenizerModel& model);

/// `model.merges`, after the added tokens: no merge may lead to a control token, whatever the file says.
/// `id_of` gives the id of a piece as the file spells it, or null.
Status read_merges(const nlohmann::json& merges, TokenizerModel& model,
                   const std::function<const std::uint32_t*(const std::string&)>& id_of);

/// A vocabulary with byte fallback and marks for spaces, as Mixtral's and Llama's.
Status read_marked_json(const nlohmann::json& root, const nlohmann::json& vocab, const nlohmann::json& merges,
                        TokenizerModel& model);

/// Reserves room for the bytes of every token of a tokenizer.json at once.
void reserve_bytes(const nlohmann::json& vocab, const nlohmann::json* added, TokenizerModel& model);

}  // namespace wisp::text
