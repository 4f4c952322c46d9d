#include "services/gateway/text/vocab_parts.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "services/gateway/text/tokenizer.hpp"
#include "services/gateway/text/unicode.hpp"

namespace wisp::text {

using Json = nlohmann::json;

namespace {

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

}  // namespace

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

Result<AddedToken> read_added_token(const Json& entry, std::optional<std::uint32_t> id) {
  const Json* content = entry.is_object() ? member(entry, "content") : nullptr;
  if (content == nullptr || !content->is_string()) return invalid("has no content");
  AddedToken token;
  token.content = content->get<std::string>();
  if (token.content.empty() || token.content.size() > Tokenizer::kMaxTokenBytes) {
    return invalid("content is empty or longer than " + std::to_string(Tokenizer::kMaxTokenBytes) + " bytes");
  }
  if (id) {
    token.id = *id;
  } else {
    const Json* own = member(entry, "id");
    if (own == nullptr) return invalid("token " + shown(token.content) + " has no id");
    WISP_ASSIGN(token.id, token_id(*own, token.content));
  }
  WISP_ASSIGN(token.special, flag(entry, "special"));
  WISP_ASSIGN(token.lstrip, flag(entry, "lstrip"));
  WISP_ASSIGN(token.rstrip, flag(entry, "rstrip"));
  WISP_ASSIGN(token.single_word, flag(entry, "single_word"));
  WISP_ASSIGN(token.normalized, flag(entry, "normalized"));
  token.control = token.special || spelt_as_control(token.content);
  return token;
}

Status add_token(std::optional<std::uint32_t> known, AddedToken token, TokenizerModel& model) {
  if (known) {
    if (*known != token.id) {
      return invalid("token " + shown(token.content) + " has id " + std::to_string(token.id) + " here and " +
                     std::to_string(*known) + " in the vocabulary");
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

Status index_added_tokens(TokenizerModel& model) {
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

Status read_added_tokens(const Json& root, const Json& vocab, TokenizerModel& model) {
  const Json* entries = member(root, "added_tokens");
  if (entries == nullptr) return {};
  if (!entries->is_array() || entries->size() > Tokenizer::kMaxAddedTokens) {
    return invalid("added_tokens: not an array of at most " + std::to_string(Tokenizer::kMaxAddedTokens));
  }
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const auto add = [&]() -> Status {
      WISP_ASSIGN(AddedToken token, read_added_token((*entries)[i]));
      const auto known = vocab.find(token.content);
      const auto id = known == vocab.end() ? std::nullopt : std::optional(known->get<std::uint32_t>());
      return add_token(id, std::move(token), model);
    };
    Status added = add();
    if (!added) return std::move(added).error().within("added_tokens[" + std::to_string(i) + "]");
  }
  return index_added_tokens(model);
}

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

}  // namespace wisp::text
