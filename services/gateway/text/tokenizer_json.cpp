#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "services/gateway/text/tokenizer.hpp"
#include "services/gateway/text/unicode.hpp"
#include "services/gateway/text/vocab_parts.hpp"

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

/// The ids of what the vocabulary spells in bytes; the views are into the model.
using ByBytes = std::unordered_map<std::string_view, std::uint32_t>;

/// `has_unknown`: the file names a token for what the vocabulary lacks.
Status read_vocab(const Json& vocab, const ByteAlphabet& alphabet, bool has_unknown, TokenizerModel& model,
                  ByBytes& by_bytes) {
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
  by_bytes.reserve(mergeable.size());
  for (const std::uint32_t id : mergeable) {
    by_bytes.emplace(model.piece(id), id);
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

Status read_model(const Json& root, TokenizerModel& model) {
  const Json* bpe = member(root, "model");
  if (bpe == nullptr || !bpe->is_object()) return invalid("model: missing");
  WISP_TRY(check_model_options(*bpe));
  WISP_ASSIGN(const bool marked, flag(*bpe, "byte_fallback"));
  if (!marked) WISP_TRY(check_decoder(root));
  const Json* vocab = member(*bpe, "vocab");
  const Json* merges = member(*bpe, "merges");
  if (vocab == nullptr || !vocab->is_object()) return invalid("model.vocab: missing, or not an object");
  if (merges == nullptr || !merges->is_array()) return invalid("model.merges: missing, or not an array");
  WISP_ASSIGN(model.ignore_merges, flag(*bpe, "ignore_merges"));
  const Json* normalizer = member(root, "normalizer");
  if (marked) return read_marked_json(root, *vocab, *merges, model);
  if (normalizer != nullptr) WISP_TRY(read_normalizer(*normalizer, 0, model.nfc));
  const Json* pre_tokenizer = member(root, "pre_tokenizer");
  if (pre_tokenizer == nullptr) return unsupported("pre_tokenizer: none; only byte-level BPE is supported");
  WISP_ASSIGN(model.pre_tokenizer, PreTokenizer::parse(*pre_tokenizer));

  const ByteAlphabet alphabet;
  ByBytes by_bytes;
  reserve_bytes(*vocab, member(root, "added_tokens"), model);  // by_bytes has views into it
  Status read = read_vocab(*vocab, alphabet, member(*bpe, "unk_token") != nullptr, model, by_bytes);
  if (!read) return std::move(read).error().within("model.vocab");
  WISP_TRY(read_added_tokens(root, *vocab, model));
  read = read_merges(*merges, model, [&](const std::string& piece) -> const std::uint32_t* {
    const std::optional<std::string> bytes = alphabet.decode(piece);
    const auto it = bytes ? by_bytes.find(*bytes) : by_bytes.end();
    return it == by_bytes.end() ? nullptr : &it->second;
  });
  if (!read) return std::move(read).error().within("model.merges");
  // Nor may a whole piece.
  for (const AddedToken& token : model.added)
    if (token.control) by_bytes.erase(token.content);
  model.bpe.finish();
  BpeScratch scratch;
  std::vector<std::uint32_t> ids;
  for (const auto& [bytes, id] : by_bytes) {
    ids.clear();
    if (!model.ignore_merges) model.bpe.encode(bytes, scratch, ids);
    if (model.ignore_merges || ids == std::vector{id}) model.whole.add(bytes, id);
  }
  return {};
}

/// The tokens that a template of the post-processor has before its text.
void read_post_processor(const Json& root, TokenizerModel& model) {
  const Json* processor = member(root, "post_processor");
  if (processor == nullptr || !processor->is_object()) return;
  const auto kind = [](const Json& step) { return step.is_object() ? step.value("type", Json()) : Json(); };
  const Json steps =
      kind(*processor) == "Sequence" ? processor->value("processors", Json()) : Json::array({*processor});
  for (const Json& step : steps) {
    if (kind(step) != "TemplateProcessing") continue;
    for (const Json& piece : step.value("single", Json())) {
      const Json* token = piece.is_object() ? member(piece, "SpecialToken") : nullptr;
      const Json* name = token != nullptr && token->is_object() ? member(*token, "id") : nullptr;
      if (token == nullptr || !token->is_object()) return;  // the text itself
      if (name == nullptr || !name->is_string()) continue;
      const auto known = model.added_ids.find(name->get_ref<const std::string&>());
      if (known != model.added_ids.end()) model.first.push_back(known->second);
    }
  }
}

}  // namespace

Status read_tokenizer_json(std::string_view json, TokenizerModel& model) {
  if (json.size() > Tokenizer::kMaxJsonBytes) {
    return invalid("larger than " + std::to_string(Tokenizer::kMaxJsonBytes >> 20) + " MiB");
  }
  const Json root = Json::parse(json, nullptr, false);
  if (root.is_discarded() || !root.is_object()) return invalid("not a JSON object; is the file complete?");
  WISP_TRY(read_model(root, model));
  read_post_processor(root, model);
  return {};
}

}  // namespace wisp::text
