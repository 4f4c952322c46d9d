#include "services/gateway/text/vocabulary.hpp"

#include <algorithm>
#include <vector>

#include "model/manifest.hpp"
#include "services/gateway/text/tokenizer_folder.hpp"
#include "services/gateway/text/unicode.hpp"

namespace wisp::text {
namespace {

constexpr std::string_view kWayOut = "; a draft needs the vocabulary of the model it drafts for";

/// Bytes as an error shows them: between quotes, what is not printable ASCII or well-formed UTF-8 as \xHH.
std::string quoted(std::string_view bytes) {
  const bool text = find_invalid_utf8(bytes) == std::string_view::npos;
  std::size_t shown = std::min<std::size_t>(bytes.size(), 48);
  while (shown < bytes.size() && (static_cast<std::uint8_t>(bytes[shown]) & 0xC0) == 0x80) --shown;
  std::string out = "\"";
  for (const char c : bytes.substr(0, shown)) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte >= 0x80 ? text : byte >= 0x20 && byte != 0x7F && byte != '"' && byte != '\\') {
      out.push_back(c);
    } else {
      constexpr std::string_view kDigits = "0123456789abcdef";
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out + (bytes.size() > shown ? "...\"" : "\"");
}

std::string spelt(const Tokenizer& t, std::uint32_t id) {
  return t.names(id) ? quoted(t.piece_bytes(id, true)) : "no token";
}

Error other_token(const Vocabulary& target, const Vocabulary& draft, std::uint32_t id) {
  return invalid(draft.name + ": id " + std::to_string(id) + " is " + spelt(*draft.tokenizer, id) +
                 ", but in " + target.name + " it is " + spelt(*target.tokenizer, id) + std::string(kWayOut));
}

/// The merges of `t` that lead to ids which both have, in order.
std::vector<Bpe::Merge> shared_merges(const Tokenizer& t, const Tokenizer& other, std::uint32_t rows) {
  std::vector<Bpe::Merge> merges = t.merges();
  // No merge leads to a control token, and one tokenizer may call control what the other does not.
  std::erase_if(merges, [&](const Bpe::Merge& m) {
    return m.merged >= rows || !t.names(m.merged) || !other.names(m.merged) || other.is_control(m.merged);
  });
  return merges;
}

std::string spelt(const Tokenizer& t, const std::vector<Bpe::Merge>& merges, std::size_t at) {
  if (at >= merges.size()) return "at an end";
  return quoted(t.piece_bytes(merges[at].left, true)) + " + " +
         quoted(t.piece_bytes(merges[at].right, true)) + " to id " + std::to_string(merges[at].merged);
}

Status compare_merges(const Vocabulary& target, const Vocabulary& draft, std::uint32_t rows) {
  const Tokenizer &t = *target.tokenizer, &d = *draft.tokenizer;
  // Those of a rank file follow from its tokens, and are not written out as tokenizer.json has them.
  if (t.has_ranks_only() || d.has_ranks_only()) return {};
  const auto of_target = shared_merges(t, d, rows), of_draft = shared_merges(d, t, rows);
  const auto [x, y] = std::mismatch(of_target.begin(), of_target.end(), of_draft.begin(), of_draft.end());
  if (x == of_target.end() && y == of_draft.end()) return {};
  const auto at = static_cast<std::size_t>(x - of_target.begin());
  return invalid(draft.name + ": merge " + std::to_string(at) + " is " + spelt(d, of_draft, at) +
                 ", but in " + target.name + " it is " + spelt(t, of_target, at) + std::string(kWayOut));
}

}  // namespace

Result<Vocabulary> load_vocabulary(const std::string& folder) {
  Vocabulary v;
  v.name = folder;
  WISP_ASSIGN(const model::Manifest manifest, model::load_manifest(folder));
  v.rows = manifest.spec.vocab;
  WISP_ASSIGN(v.tokenizer, load_tokenizer(folder));
  return v;
}

Status compare_vocabularies(const Vocabulary& target, const Vocabulary& draft) {
  if (!target.tokenizer && !draft.tokenizer) {
    if (target.rows == draft.rows) return {};
    return invalid(draft.name + ": has " + std::to_string(draft.rows) + " ids, " + target.name + " has " +
                   std::to_string(target.rows) + ", and neither has a tokenizer to compare them by");
  }
  if (!target.tokenizer || !draft.tokenizer) {
    const bool of_draft = !draft.tokenizer;
    return invalid((of_draft ? draft : target).name + ": has no tokenizer to compare with that of " +
                   (of_draft ? target : draft).name + "; convert it with its tokenizer.json");
  }
  const std::uint32_t rows = std::min(target.rows, draft.rows);
  const Tokenizer &t = *target.tokenizer, &d = *draft.tokenizer;
  for (std::uint32_t id = 0; id < std::min(rows, d.vocab_size()); ++id) {
    if (!d.names(id)) continue;
    if (!t.names(id) || t.piece_bytes(id, true) != d.piece_bytes(id, true))
      return other_token(target, draft, id);
  }
  return compare_merges(target, draft, rows);
}

Status compare_vocabularies(const std::string& target_folder, const std::string& draft_folder) {
  WISP_ASSIGN(const Vocabulary target, load_vocabulary(target_folder));
  WISP_ASSIGN(const Vocabulary draft, load_vocabulary(draft_folder));
  return compare_vocabularies(target, draft);
}

}  // namespace wisp::text
