#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "services/gateway/text/known_split.hpp"
#include "services/gateway/text/tokenizer.hpp"
#include "services/gateway/text/vocab_parts.hpp"

namespace wisp::text {
namespace {

using Json = nlohmann::json;

// Each way to cut a token in two is tried, so a hostile file's time grows with the square of this.
constexpr std::size_t kMaxRankedBytes = 512;

/// The bytes that padded base64 spells; nullopt for anything else.
std::optional<std::string> from_base64(std::string_view text) {
  static const auto values = [] {
    std::array<std::int8_t, 256> out{};
    out.fill(-1);
    std::int8_t value = 0;
    for (const char c : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))
      out[static_cast<std::uint8_t>(c)] = value++;
    return out;
  }();
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::int8_t value = values[static_cast<std::uint8_t>(c)];
    if (value < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out.push_back(static_cast<char>(static_cast<std::uint8_t>(bits >> held)));
      bits &= (1U << held) - 1;
    }
  }
  return bits == 0 ? std::optional(out) : std::nullopt;
}

/// One line, "BASE64 ID".
Status read_line(std::string_view line, TokenizerModel& model) {
  const std::size_t space = line.find(' ');
  const std::optional<std::string> bytes = from_base64(line.substr(0, space));
  std::uint32_t id = 0;
  const char* const end = line.data() + line.size();
  const auto number =
      std::from_chars(space == std::string_view::npos ? end : line.data() + space + 1, end, id);
  if (!bytes || number.ec != std::errc() || number.ptr != end)
    return invalid("not a token in base64, a space and its id; is the file complete?");
  if (bytes->size() > kMaxRankedBytes)
    return invalid("a token longer than " + std::to_string(kMaxRankedBytes) + " bytes");
  if (id >= Tokenizer::kMaxVocab - Tokenizer::kReservedIds)
    return invalid("id " + std::to_string(id) + " is out of range");
  if (model.whole.find(*bytes) != PieceTable::kNone)
    return invalid("the token of id " + std::to_string(id) + " stands there twice");
  WISP_TRY(place(model, id, *bytes, line.substr(0, space)));
  model.whole.add(*bytes, id);
  if (bytes->size() == 1) model.bpe.set_byte(static_cast<std::uint8_t>((*bytes)[0]), id);
  return {};
}

/// Every token, and as tiktoken has it each way to cut one in two as a merge, with the token's id as its
/// rank.
Status read_ranks(std::string_view text, TokenizerModel& model) {
  if (text.size() > Tokenizer::kMaxJsonBytes)
    return invalid("larger than " + std::to_string(Tokenizer::kMaxJsonBytes >> 20) + " MiB");
  std::size_t line_number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    Status read = read_line(line, model);
    if (!read) return std::move(read).error().within("line " + std::to_string(line_number));
  }
  const auto count = static_cast<std::uint32_t>(model.pieces.size());
  for (std::uint32_t id = 0; id < count; ++id)
    if (!model.pieces[id].used) return invalid("id " + std::to_string(id) + " is missing");
  for (unsigned byte = 0; byte < 256; ++byte)
    if (model.bpe.byte_id(static_cast<std::uint8_t>(byte)) == Bpe::kNone)
      return invalid("no token for byte " + std::to_string(byte));

  struct Merge {
    std::uint32_t left, right, merged;
  };
  std::vector<Merge> merges;
  for (std::uint32_t id = 0; id < count; ++id) {
    const std::string_view piece = model.piece(id);
    for (std::size_t at = 1; at < piece.size(); ++at) {
      const std::uint32_t left = model.whole.find(piece.substr(0, at));
      if (left == PieceTable::kNone) continue;
      const std::uint32_t right = model.whole.find(piece.substr(at));
      if (right != PieceTable::kNone) merges.push_back({left, right, id});
    }
    if (merges.size() > Tokenizer::kMaxMerges)
      return invalid("more than " + std::to_string(Tokenizer::kMaxMerges) + " ways to cut tokens in two");
  }
  model.bpe.reserve(merges.size());
  for (const Merge& merge : merges) model.bpe.add_merge(merge.left, merge.right, merge.merged, merge.merged);
  model.bpe.finish();
  return {};
}

/// The control tokens that follow `first` - 1, by the names that the file gives.
Status read_names(const Json& config, std::uint32_t first, TokenizerModel& model) {
  const Json* type = member(config, "tokenizer_class");
  if (type != nullptr && *type != "TikTokenTokenizer")
    return unsupported("tokenizer_class " + type->dump() +
                       "; beside a tiktoken.model this build knows only Kimi's, "
                       "TikTokenTokenizer");
  const Json* names = member(config, "added_tokens_decoder");
  if (names == nullptr || !names->is_object())
    return invalid("added_tokens_decoder: missing; it names the control tokens of tiktoken.model");
  std::vector<AddedToken> tokens(Tokenizer::kReservedIds);
  for (std::uint32_t i = 0; i < tokens.size(); ++i) {
    tokens[i].content = "<|reserved_token_" + std::to_string(first + i) + "|>";
    tokens[i].id = first + i;
    tokens[i].special = true;
  }
  for (const auto& [key, entry] : names->items()) {
    const std::string where = "added_tokens_decoder[" + shown(key) + "]";
    std::uint32_t id = 0;
    const auto number = std::from_chars(key.data(), key.data() + key.size(), id);
    if (number.ec != std::errc() || number.ptr != key.data() + key.size())
      return invalid(where + ": not an id");
    if (id < first || id - first >= tokens.size())
      return invalid(where + ": the ids after those of tiktoken.model are " + std::to_string(first) + " to " +
                     std::to_string(first + tokens.size() - 1) + "; is tiktoken.model complete?");
    auto token = read_added_token(entry, id);
    if (!token.ok()) return std::move(token).error().within(where);
    tokens[id - first] = *std::move(token);
  }
  for (AddedToken& token : tokens) {
    // tiktoken knows neither flags nor other added tokens: each is found as it is written, or not at all.
    token.control = true;
    token.lstrip = token.rstrip = token.single_word = token.normalized = false;
    WISP_TRY(add_token(std::nullopt, std::move(token), model));
  }
  return index_added_tokens(model);
}

}  // namespace

Status read_tiktoken(std::string_view ranks, std::string_view config, TokenizerModel& model) {
  model.bytes.reserve(ranks.size() + config.size() + std::size_t{64} * Tokenizer::kReservedIds);
  Status read = read_ranks(ranks, model);
  if (!read) return std::move(read).error().within("tiktoken.model");
  const Json json = Json::parse(config, nullptr, false);
  read = json.is_object()
             ? read_names(json, static_cast<std::uint32_t>(model.pieces.size()), model)
             : invalid("not a JSON object, or missing; it names the control tokens of tiktoken.model");
  if (!read) return std::move(read).error().within("tokenizer_config.json");
  model.pre_tokenizer = PreTokenizer::of(kimi_split());
  model.ignore_merges = true;
  model.cut_long = true;
  return {};
}

}  // namespace wisp::text
