#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "services/gateway/text/tokenizer.hpp"
#include "services/gateway/text/tokenizer_model.hpp"
#include "services/gateway/text/unicode.hpp"

namespace wisp::text {
namespace {

using Json = nlohmann::json;

/// Which byte each character of GPT-2's printable alphabet stands for; -1 for none. Bytes that print stand
/// for themselves, the others for U+0100 and up, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    std::size_t other = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      bytes_[prints ? static_cast<std::size_t>(byte) : other++] = byte;
    }
  }

  /// The bytes that `key` spells, or nullopt when a character of it is outside the alphabet.
  std::optional<std::string> decode(std::string_view key) const {
    std::string out;
    for (std::size_t pos = 0; pos < key.size();) {
      const char32_t c = next_char(key, pos);
      if (c >= bytes_.size() || bytes_[c] < 0) return std::nullopt;
      out.push_back(static_cast<char>(static_cast<std::uint8_t>(bytes_[c])));
    }
    return out;
  }

 private:
  std::array<int, 324> bytes_{};  // 256 and the 68 bytes that do not print
};

/// A text from the file, short enough for a message.
std::string shown(std::string_view text) {
  constexpr std::size_t kLimit = 60;
  std::string out = "\"";
  for (std::size_t pos = 0; pos < text.size() && out.size() <= kLimit;) {
    const std::size_t begin = pos;
    next_char(text, pos);
    out.append(text.substr(begin, pos - begin));
  }
  return out + (out.size() > kLimit ? "...\"" : "\"");
}

const Json* member(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<bool> flag(const Json& object, const char* name) {
  const Json* value = member(object, name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return invalid(std::string(name) + " is not true or false");
  return value->get<bool>();
}

Result<std::uint32_t> token_id(const Json& value, std::string_view token) {
  if (!value.is_number_unsigned()) return invalid("token " + shown(token) + ": id is not a number >= 0");
  const auto id = value.get<std::uint64_t>();
  if (id >= Tokenizer::kMaxVocab) {
    return invalid("token " + shown(token) + ": id " + std::to_string(id) + " out of range, at most " +
                   std::to_string(Tokenizer::kMaxVocab - 1) + " is possible");
  }
  return static_cast<std::uint32_t>(id);
}

Status read_normalizer(const Json& config, std::size_t depth, bool& composes) {
  const Json* type = config.is_object() ? member(config, "type") : nullptr;
  if (type == nullptr || !type->is_string()) return invalid("normalizer: has no type");
  const auto name = type->get<std::string>();
  if (name == "NFC") {
    composes = true;
    return {};
  }
  const Json* parts = name == "Sequence" ? member(config, "normalizers") : nullptr;
  if (parts == nullptr || !parts->is_array() || depth > 8) {
    return unsupported("normalizer: type " + shown(name) +
                       "; this build knows NFC, null and Sequences of them");
  }
  for (const Json& part : *parts) WISP_TRY(read_normalizer(part, depth + 1, composes));
  return {};
}

/// With marks: Replace, ByteFallback, Fuse and Strip, or Metaspace, in a Sequence. Fills whether a space is
/// stripped.
Status check_marks_decoder(const Json& root, bool& strips) {
  const Json* decoder = member(root, "decoder");
  const Json* parts = decoder != nullptr && decoder->is_object() ? member(*decoder, "decoders") : nullptr;
  if (parts == nullptr || !parts->is_array()) return unsupported("decoder: no Sequence, with byte_fallback");
  for (const Json& part : *parts) {
    const Json* type = part.is_object() ? member(part, "type") : nullptr;
    const std::string name = type != nullptr && type->is_string() ? type->get<std::string>() : "";
    if (name != "Replace" && name != "ByteFallback" && name != "Fuse" && name != "Strip" &&
        name != "Metaspace")
      return unsupported("decoder: a step " + shown(name) + " with byte_fallback");
    strips = strips || name == "Strip" || name == "Metaspace";
  }
  return {};
}

Status check_decoder(const Json& root) {
  const Json* decoder = member(root, "decoder");
  const Json* type = decoder != nullptr && decoder->is_object() ? member(*decoder, "type") : nullptr;
  if (type == nullptr || *type != "ByteLevel") {
    return unsupported("decoder: not of type ByteLevel; only byte-level BPE is supported");
  }
  return {};
}

/// Options of the BPE model that would change its ids and are not implemented.
Status check_model_options(const Json& model) {
  const Json* type = member(model, "type");
  if (type != nullptr && *type != "BPE")
    return unsupported("model: type " + type->dump() + "; only BPE is supported");
  const Json* dropout = member(model, "dropout");
  if (dropout != nullptr && *dropout != 0.0) return unsupported("model: dropout is not null");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = member(model, affix);
    if (value != nullptr && *value != "")
      return unsupported(std::string("model: ") + affix + " is not empty");
  }
  return {};
}

/// Reserves room for every token's bytes at once, because by_bytes holds views into them.
void reserve_bytes(const Json& vocab, const Json* added, TokenizerModel& model) {
  std::size_t total = 0;
  for (const auto& entry : vocab.items()) total += entry.key().size();
  if (added != nullptr && added->is_array()) {
    for (const Json& entry : *added) {
      const Json* content = entry.is_object() ? member(entry, "content") : nullptr;
      if (content != nullptr && content->is_string()) total += content->get_ref<const std::string&>().size();
    }
  }
  model.bytes.reserve(total);
}

/// Adds the bytes of a token under its id.
Status place(TokenizerModel& model, std::uint32_t id, std::string_view bytes, std::string_view name) {
  if (model.pieces.size() <= id) model.pieces.resize(id + 1);
  TokenizerModel::Piece& piece = model.pieces[id];
  if (piece.used) {
    return invalid(
        "id " + std::to_string(id) + " belongs to " + shown(name) +
        " and to another token, whose bytes are " +
        shown(find_invalid_utf8(model.piece(id)) == std::string_view::npos ? model.piece(id) : "not UTF-8"));
  }
  piece = {static_cast<std::uint32_t>(model.bytes.size()), static_cast<std::uint32_t>(bytes.size()), true,
           false, false};
  WISP_CHECK(model.bytes.size() + bytes.size() <= model.bytes.capacity());
  model.bytes.append(bytes);
  model.longest_piece = std::max(model.longest_piece, bytes.size());
  return {};
}

/// `has_unknown`: the file names a token for what the vocabulary lacks.
Status read_vocab(const Json& vocab, const ByteAlphabet& alphabet, bool has_unknown, TokenizerModel& model) {
  if (vocab.size() > Tokenizer::kMaxVocab)
    return invalid("more than " + std::to_string(Tokenizer::kMaxVocab) + " tokens");
  std::vector<std::uint32_t> mergeable;
  mergeable.reserve(vocab.size());
  for (const auto& [key, value] : vocab.items()) {
    if (key.size() > Tokenizer::kMaxTokenBytes) {
      return invalid("token " + shown(key) + " longer than " + std::to_string(Tokenizer::kMaxTokenBytes) +
                     " bytes");
    }
    WISP_ASSIGN(const std::uint32_t id, token_id(value, key));
    const std::optional<std::string> bytes = alphabet.decode(key);
    WISP_TRY(place(model, id, bytes ? *bytes : key, key));
    if (bytes && !bytes->empty()) mergeable.push_back(id);
  }
  model.by_bytes.reserve(mergeable.size());
  for (const std::uint32_t id : mergeable) {
    model.by_bytes.emplace(model.piece(id), id);
    if (model.pieces[id].size == 1) model.bpe.set_byte(static_cast<std::uint8_t>(model.piece(id)[0]), id);
  }
  if (!has_unknown) return {};  // a byte without a token is dropped, and its neighbours may merge
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
    if (in_utf8 && model.bpe.byte_id(static_cast<std::uint8_t>(byte)) == Bpe::kNone) {
      return invalid("no token for byte " + std::to_string(byte) +
                     ", and unk_token is not null; a byte-level vocabulary has one for each");
    }
  }
  return {};
}

/// Characters of UTF-8 text.
std::size_t utf8_count(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<std::uint8_t>(c) & 0xC0) != 0x80; }));
}

/// A vocabulary of characters, marks and bytes "<0x00>" to "<0xFF>".
Status read_marked_vocab(const Json& vocab, TokenizerModel& model) {
  if (vocab.size() > Tokenizer::kMaxVocab)
    return invalid("more than " + std::to_string(Tokenizer::kMaxVocab) + " tokens");
  for (const auto& [key, value] : vocab.items()) {
    if (key.size() > Tokenizer::kMaxTokenBytes)
      return invalid("token " + shown(key) + " longer than " + std::to_string(Tokenizer::kMaxTokenBytes) +
                     " bytes");
    WISP_ASSIGN(const std::uint32_t id, token_id(value, key));
    const std::string bytes = SpaceMarks::bytes_of(key);
    WISP_TRY(place(model, id, bytes, key));
    model.longest_piece = std::max(model.longest_piece, key.size());
    const bool byte = key.size() == 6 && bytes.size() == 1;
    if (byte) model.bpe.set_byte(static_cast<std::uint8_t>(bytes[0]), id);
    if (!byte && !key.empty() && utf8_count(key) == 1) model.characters.emplace(key, id);
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    if (model.bpe.byte_id(static_cast<std::uint8_t>(byte)) == Bpe::kNone)
      return invalid("no token for byte " + std::to_string(byte) + ", with byte_fallback");
  return {};
}

Result<std::pair<std::string, std::string>> read_merge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && space > 0 && space + 1 < text.size() &&
        text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return invalid("neither \"a b\" nor [\"a\", \"b\"]");
}

/// After the added tokens: no merge may lead to a control token, whatever the file says. `id_of` gives the id
/// of a piece as the file spells it, or null.
Status read_merges(const Json& merges, TokenizerModel& model,
                   const std::function<const std::uint32_t*(const std::string&)>& id_of) {
  if (merges.size() > Tokenizer::kMaxMerges)
    return invalid("more than " + std::to_string(Tokenizer::kMaxMerges));
  model.bpe.reserve(merges.size());
  std::uint32_t rank = 0;
  for (const Json& merge : merges) {
    const auto add = [&]() -> Status {
      WISP_ASSIGN(const auto pair, read_merge(merge));
      std::uint32_t ids[3];
      const std::string pieces[3] = {pair.first, pair.second, pair.first + pair.second};
      for (int i = 0; i < 3; ++i) {
        const std::uint32_t* id = id_of(pieces[i]);
        if (id == nullptr) return invalid("piece " + shown(pieces[i]) + " is not in the vocabulary");
        ids[i] = *id;
      }
      if (!model.pieces[ids[2]].control) model.bpe.add_merge(ids[0], ids[1], rank, ids[2]);
      return {};
    };
    Status added = add();
    if (!added) return std::move(added).error().within("[" + std::to_string(rank) + "]");
    ++rank;
  }
  return {};
}

/// True for `<|name|>` and its full-width form. Some files forget to call their role marks special; such a
/// mark in user text must not become an id all the same.
bool spelt_as_control(std::string_view content) {
  constexpr std::string_view kBar = "\xEF\xBD\x9C";
  const auto framed = [content](std::string_view open, std::string_view close) {
    return content.size() > open.size() + close.size() && content.starts_with(open) &&
           content.ends_with(close);
  };
  return framed("<|", "|>") || framed("<" + std::string(kBar), std::string(kBar) + ">");
}

Result<AddedToken> read_added(const Json& entry) {
  const Json* content = entry.is_object() ? member(entry, "content") : nullptr;
  if (content == nullptr || !content->is_string()) return invalid("has no content");
  AddedToken token;
  token.content = content->get<std::string>();
  if (token.content.empty() || token.content.size() > Tokenizer::kMaxTokenBytes) {
    return invalid("content is empty or longer than " + std::to_string(Tokenizer::kMaxTokenBytes) + " bytes");
  }
  const Json* id = member(entry, "id");
  if (id == nullptr) return invalid("token " + shown(token.content) + " has no id");
  WISP_ASSIGN(token.id, token_id(*id, token.content));
  WISP_ASSIGN(token.special, flag(entry, "special"));
  WISP_ASSIGN(token.lstrip, flag(entry, "lstrip"));
  WISP_ASSIGN(token.rstrip, flag(entry, "rstrip"));
  WISP_ASSIGN(token.single_word, flag(entry, "single_word"));
  WISP_ASSIGN(token.normalized, flag(entry, "normalized"));
  token.control = token.special || spelt_as_control(token.content);
  return token;
}

/// `vocab` decides the id of a token that is in both places; the two must agree.
Status add_token(const Json& vocab, AddedToken token, TokenizerModel& model) {
  const auto known = vocab.find(token.content);
  if (known != vocab.end()) {
    if (known->get<std::uint32_t>() != token.id) {
      return invalid("token " + shown(token.content) + " has id " + std::to_string(token.id) + " here and " +
                     known->dump() + " in the vocabulary");
    }
    // The vocabulary spells bytes, an added token text: its own text is what it decodes to.
    model.pieces[token.id].used = false;
  }
  WISP_TRY(place(model, token.id, token.content, token.content));
  model.pieces[token.id].special = token.special;
  model.pieces[token.id].control = token.control;
  model.added.push_back(std::move(token));
  return {};
}

Status read_added_tokens(const Json& root, const Json& vocab, TokenizerModel& model) {
  const Json* entries = member(root, "added_tokens");
  if (entries == nullptr) return {};
  if (!entries->is_array() || entries->size() > Tokenizer::kMaxAddedTokens) {
    return invalid("added_tokens: not an array of at most " + std::to_string(Tokenizer::kMaxAddedTokens));
  }
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const auto add = [&]() -> Status {
      WISP_ASSIGN(AddedToken token, read_added((*entries)[i]));
      return add_token(vocab, std::move(token), model);
    };
    Status added = add();
    if (!added) return std::move(added).error().within("added_tokens[" + std::to_string(i) + "]");
  }
  for (const AddedToken& token : model.added) {
    if (!model.added_ids.emplace(token.content, token.id).second) {
      return invalid("added_tokens: " + shown(token.content) + " stands there twice");
    }
    if (token.control) model.control.add(token.content, token);
    if (!token.normalized) {
      model.raw.add(token.content, token);
    } else if (model.nfc) {
      WISP_ASSIGN(const std::string content, nfc(token.content));
      model.normalized.add(content, token);
    } else {
      model.normalized.add(token.content, token);
    }
  }
  return {};
}

/// A vocabulary with marks, as Mixtral's and Llama's.
Status read_marked(const Json& root, const Json& vocab, const Json& merges, TokenizerModel& model) {
  if (model.ignore_merges) return unsupported("model: ignore_merges with byte_fallback");
  WISP_ASSIGN(model.marks, SpaceMarks::parse(member(root, "normalizer"), member(root, "pre_tokenizer")));
  reserve_bytes(vocab, member(root, "added_tokens"), model);
  Status read = read_marked_vocab(vocab, model);
  if (!read) return std::move(read).error().within("model.vocab");
  WISP_TRY(read_added_tokens(root, vocab, model));
  std::uint32_t found = 0;
  read = read_merges(merges, model, [&](const std::string& piece) -> const std::uint32_t* {
    const auto it = vocab.find(piece);
    if (it == vocab.end()) return nullptr;
    found = it->get<std::uint32_t>();
    return &found;
  });
  if (!read) return std::move(read).error().within("model.merges");
  for (const AddedToken& token : model.added) {
    if (token.normalized)
      return unsupported("added token " + shown(token.content) + " is normalized, with byte_fallback");
    if (token.control) model.characters.erase(token.content);
  }
  return {};
}

}  // namespace

Status read_tokenizer_json(std::string_view json, TokenizerModel& model) {
  if (json.size() > Tokenizer::kMaxJsonBytes) {
    return invalid("larger than " + std::to_string(Tokenizer::kMaxJsonBytes >> 20) + " MiB");
  }
  const Json root = Json::parse(json, nullptr, false);
  if (root.is_discarded() || !root.is_object()) return invalid("not a JSON object; is the file complete?");
  const Json* bpe = member(root, "model");
  if (bpe == nullptr || !bpe->is_object()) return invalid("model: missing");
  WISP_TRY(check_model_options(*bpe));
  WISP_ASSIGN(const bool marked, flag(*bpe, "byte_fallback"));
  if (marked) {
    WISP_TRY(check_marks_decoder(root, model.strip_space));
  } else {
    WISP_TRY(check_decoder(root));
  }
  const Json* vocab = member(*bpe, "vocab");
  const Json* merges = member(*bpe, "merges");
  if (vocab == nullptr || !vocab->is_object()) return invalid("model.vocab: missing, or not an object");
  if (merges == nullptr || !merges->is_array()) return invalid("model.merges: missing, or not an array");
  WISP_ASSIGN(model.ignore_merges, flag(*bpe, "ignore_merges"));
  const Json* normalizer = member(root, "normalizer");
  if (marked) return read_marked(root, *vocab, *merges, model);
  if (normalizer != nullptr) WISP_TRY(read_normalizer(*normalizer, 0, model.nfc));
  const Json* pre_tokenizer = member(root, "pre_tokenizer");
  if (pre_tokenizer == nullptr) return unsupported("pre_tokenizer: none; only byte-level BPE is supported");
  WISP_ASSIGN(model.pre_tokenizer, PreTokenizer::parse(*pre_tokenizer));

  const ByteAlphabet alphabet;
  reserve_bytes(*vocab, member(root, "added_tokens"), model);
  Status read = read_vocab(*vocab, alphabet, member(*bpe, "unk_token") != nullptr, model);
  if (!read) return std::move(read).error().within("model.vocab");
  WISP_TRY(read_added_tokens(root, *vocab, model));
  read = read_merges(*merges, model, [&](const std::string& piece) -> const std::uint32_t* {
    const std::optional<std::string> bytes = alphabet.decode(piece);
    const auto it = bytes ? model.by_bytes.find(*bytes) : model.by_bytes.end();
    return it == model.by_bytes.end() ? nullptr : &it->second;
  });
  if (!read) return std::move(read).error().within("model.merges");
  // Nor may a whole piece.
  for (const AddedToken& token : model.added)
    if (token.control) model.by_bytes.erase(token.content);
  return {};
}

}  // namespace wisp::text
