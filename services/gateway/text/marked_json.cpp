#include <algorithm>
#include <nlohmann/json.hpp>

#include "services/gateway/text/tokenizer.hpp"
#include "services/gateway/text/vocab_parts.hpp"

namespace wisp::text {

using Json = nlohmann::json;

namespace {

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
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    if (model.bpe.byte_id(static_cast<std::uint8_t>(byte)) == Bpe::kNone)
      return invalid("no token for byte " + std::to_string(byte) + ", with byte_fallback");
  return {};
}

/// The pieces that are merged to one id, and whether a text may be cut before each mark that follows
/// something else: no merge reaches across where no token has a mark inside.
void finish_marked(const Json& vocab, TokenizerModel& model) {
  const auto mergeable = [&](const std::string& key) {
    return !key.empty() && !(key.size() == 6 && SpaceMarks::bytes_of(key).size() == 1);
  };
  const auto id_of = [](const Json& value) { return value.get<std::uint32_t>(); };
  for (const auto& [key, value] : vocab.items())
    if (mergeable(key) && utf8_count(key) == 1 && !model.pieces[id_of(value)].control)
      model.characters.add(key, id_of(value));
  model.bpe.finish();
  model.marks->words = true;
  BpeScratch scratch;
  std::vector<std::uint32_t> ids;
  for (const auto& [key, value] : vocab.items()) {
    const std::uint32_t id = id_of(value);
    if (!mergeable(key) || model.pieces[id].control) continue;
    const std::size_t first = std::min(key.size(), key.find_first_not_of(SpaceMarks::kMark));
    model.marks->words = model.marks->words && key.find(SpaceMarks::kMark, first) == std::string::npos;
    model.first_ids(key, scratch.initial);
    ids.clear();
    model.bpe.merge(scratch, ids);
    if (ids == std::vector{id}) model.whole.add(key, id);
  }
}

}  // namespace

Status read_marked_json(const Json& root, const Json& vocab, const Json& merges, TokenizerModel& model) {
  WISP_TRY(check_marks_decoder(root, model.strip_space));
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
  for (const AddedToken& token : model.added)
    if (token.normalized)
      return unsupported("added token " + shown(token.content) + " is normalized, with byte_fallback");
  finish_marked(vocab, model);
  return {};
}

}  // namespace wisp::text
