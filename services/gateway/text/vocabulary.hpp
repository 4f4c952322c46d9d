#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "services/gateway/text/tokenizer.hpp"

namespace wisp::text {

/// What the ids of a model stand for.
struct Vocabulary {
  std::string name;        ///< for errors: the model's folder
  std::uint32_t rows = 0;  ///< of embedding and head; ids that the tokenizer does not name are padding
  std::optional<Tokenizer> tokenizer;  ///< none: the model takes ids only
};

/// That of a converted folder. Errors: those of model::load_manifest and of load_tokenizer.
Result<Vocabulary> load_vocabulary(const std::string& folder);

/// Whether an id that the draft proposes is the same text in the target (spec 12.1). Compared are, up to the
/// rows of the smaller: every id that the draft names, by its bytes, and the merges that lead to ids both
/// name, in order. Ids that only the target names are none of the draft's; those from the smaller's rows on
/// it must not propose. Flags of added tokens say how a text is read and shown, not what an id is, and are
/// left out. Without tokenizers, equal rows are all there is to ask. kInvalid names both models, the first id
/// that differs, and what it is in each.
Status compare_vocabularies(const Vocabulary& target, const Vocabulary& draft);
/// The same of two converted folders.
Status compare_vocabularies(const std::string& target_folder, const std::string& draft_folder);

}  // namespace wisp::text
