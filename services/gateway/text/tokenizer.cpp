#include "services/gateway/text/tokenizer.hpp"

#include <new>
#include <utility>

#include "base/check.hpp"
#include "services/gateway/text/long_text.hpp"
#include "services/gateway/text/tokenizer_model.hpp"
#include "services/gateway/text/unicode.hpp"
#include "services/gateway/text/utf8_stream.hpp"

namespace wisp::text {
namespace {

/// One encode call: scratch memory and the ids so far.
class Encoder {
 public:
  Encoder(const TokenizerModel& model, std::size_t max_ids) : model_(model), max_ids_(max_ids) {}

  /// All of a text, in parts where the model wants it cut.
  Status text(std::string_view text, bool parse_special, bool first) {
    if (!model_.cut_long) return raw(text, parse_special, first);
    for (const std::string_view part : cut_long(text)) WISP_TRY(raw(part, parse_special, first));
    return {};
  }

  std::vector<std::uint32_t> take() { return std::move(ids_); }
  /// Whether there were more ids than allowed.
  bool overflowed() const { return overflowed_; }

 private:
  /// Raw text: added tokens, then normalising, then added tokens again, then pieces.
  Status raw(std::string_view text, bool parse_special, bool first) {
    for (const Segment& segment : model_.raw.split(text, parse_special)) {
      const std::string_view part = text.substr(segment.begin, segment.end - segment.begin);
      if (segment.id) {
        WISP_TRY(single(*segment.id));
      } else if (model_.marks) {
        WISP_TRY(marked(model_.marks->apply(part, first && segment.begin == 0)));
      } else if (model_.nfc && !is_composed(part)) {
        WISP_ASSIGN(const std::string composed, nfc(part));
        WISP_TRY(normalized(composed, parse_special));
      } else {
        WISP_TRY(normalized(part, parse_special));
      }
    }
    return {};
  }

  Status normalized(std::string_view text, bool parse_special) {
    for (const Segment& segment : model_.normalized.split(text, parse_special)) {
      if (segment.id) {
        WISP_TRY(single(*segment.id));
        continue;
      }
      const std::string_view part = text.substr(segment.begin, segment.end - segment.begin);
      WISP_TRY(model_.pre_tokenizer.split(part, ranges_));
      for (const PreTokenizer::Range& range : ranges_)
        WISP_TRY(piece(part.substr(range.begin, range.end - range.begin)));
    }
    return {};
  }

  /// A text with marks: its characters, or where the vocabulary lacks one its bytes, are merged.
  Status marked(const std::string& text) {
    model_.marks->cut(text, pieces_);
    for (const std::string_view piece : pieces_) {
      if (const std::uint32_t whole = model_.whole.find(piece); whole != PieceTable::kNone) {
        WISP_TRY(single(whole));
        continue;
      }
      if (ids_.size() + piece.size() / model_.longest_piece > max_ids_) return too_many();
      model_.first_ids(piece, scratch_.initial);
      model_.bpe.merge(scratch_, ids_);
      if (ids_.size() > max_ids_) return too_many();
    }
    return {};
  }

  Status piece(std::string_view bytes) {
    if (const std::uint32_t whole = model_.whole.find(bytes); whole != PieceTable::kNone)
      return single(whole);
    // A piece may be all of the text, and merging takes 32 bytes a byte.
    if (ids_.size() + bytes.size() / model_.longest_piece > max_ids_) return too_many();
    model_.bpe.encode(bytes, scratch_, ids_);
    return ids_.size() > max_ids_ ? too_many() : Status();
  }

  Status single(std::uint32_t id) {
    if (ids_.size() >= max_ids_) return too_many();
    ids_.push_back(id);
    return {};
  }

  Status too_many() {
    overflowed_ = true;
    return exhausted("more than " + std::to_string(max_ids_) + " tokens");
  }

  const TokenizerModel& model_;
  const std::size_t max_ids_;
  bool overflowed_ = false;
  std::vector<PreTokenizer::Range> ranges_;
  std::vector<std::string_view> pieces_;
  BpeScratch scratch_;
  std::vector<std::uint32_t> ids_;
};

}  // namespace

Result<Tokenizer> Tokenizer::load(std::string_view json) {
  try {
    auto model = std::make_shared<TokenizerModel>();
    Status read = read_tokenizer_json(json, *model);
    if (!read) return std::move(read).error().within("tokenizer.json");
    return Tokenizer(std::move(model));
  } catch (const std::bad_alloc&) {
    return exhausted("tokenizer.json: no memory to hold it");
  }
}

Result<Tokenizer> Tokenizer::load_tiktoken(std::string_view ranks, std::string_view config) {
  try {
    auto model = std::make_shared<TokenizerModel>();
    WISP_TRY(read_tiktoken(ranks, config, *model));
    return Tokenizer(std::move(model));
  } catch (const std::bad_alloc&) {
    return exhausted("tiktoken.model: no memory to hold it");
  }
}

Result<std::vector<std::uint32_t>> Tokenizer::encode(std::string_view text, bool parse_special) const {
  // No text has more ids than bytes.
  WISP_ASSIGN(auto ids, encode_up_to(kMaxTextBytes, text, parse_special));
  WISP_CHECK(ids.has_value());
  return *std::move(ids);
}

Result<std::optional<std::vector<std::uint32_t>>> Tokenizer::encode_up_to(std::size_t max_ids,
                                                                          std::string_view text,
                                                                          bool parse_special,
                                                                          bool first) const {
  using Ids = std::optional<std::vector<std::uint32_t>>;
  if (text.size() > kMaxTextBytes) {
    return invalid("text of " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(kMaxTextBytes) + " can be encoded at once");
  }
  const std::size_t broken = find_invalid_utf8(text);
  if (broken != std::string_view::npos) return invalid("text is not UTF-8 at byte " + std::to_string(broken));
  try {
    Encoder encoder(*model_, max_ids);
    Status done = encoder.text(text, parse_special, first);
    if (encoder.overflowed()) return Ids();
    if (!done) return std::move(done).error();
    return Ids(encoder.take());
  } catch (const std::bad_alloc&) {
    return exhausted("no memory to encode a text of " + std::to_string(text.size()) + " bytes");
  }
}

std::vector<Segment> Tokenizer::split_control(std::string_view text) const {
  return model_->control.split(text, true);
}

std::optional<Segment> Tokenizer::control_at(std::string_view text, std::size_t begin) const {
  return model_->control.at(text, begin);
}

std::string_view Tokenizer::piece_bytes(std::uint32_t id, bool with_special) const {
  if (id >= model_->pieces.size()) return {};
  const TokenizerModel::Piece& piece = model_->pieces[id];
  return piece.special && !with_special ? std::string_view() : model_->piece(id);
}

bool Tokenizer::is_special(std::uint32_t id) const {
  return id < model_->pieces.size() && model_->pieces[id].special;
}

bool Tokenizer::names(std::uint32_t id) const {
  return id < model_->pieces.size() && model_->pieces[id].used;
}

bool Tokenizer::is_control(std::uint32_t id) const {
  return id < model_->pieces.size() && model_->pieces[id].control;
}

std::vector<Bpe::Merge> Tokenizer::merges() const {
  return model_->bpe.merges();
}

bool Tokenizer::has_ranks_only() const {
  return model_->cut_long;  // read_tiktoken sets it, and nothing else
}

std::string Tokenizer::decode(const std::vector<std::uint32_t>& ids, bool skip_special) const {
  Utf8Stream stream;
  std::string out;
  for (const std::uint32_t id : ids) out += stream.push(piece_bytes(id, !skip_special));
  out += stream.flush();
  if (model_->strip_space && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

std::uint32_t Tokenizer::vocab_size() const {
  return static_cast<std::uint32_t>(model_->pieces.size());
}

std::optional<std::uint32_t> Tokenizer::id_of(std::string_view added) const {
  const auto it = model_->added_ids.find(added);
  if (it == model_->added_ids.end()) return std::nullopt;
  return it->second;
}

const std::vector<std::uint32_t>& Tokenizer::post_processor_first() const {
  return model_->first;
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const {
  return model_->added;
}

}  // namespace wisp::text
