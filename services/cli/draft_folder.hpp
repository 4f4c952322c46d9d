#pragma once
#include <string>

#include "base/result.hpp"
#include "services/cli/console.hpp"
#include "services/cli/draft_cache.hpp"
#include "services/cli/interrupt.hpp"

namespace wisp::cli {

/// How a Hugging Face folder is converted by hand.
struct ByHand {
  std::string command;      ///< wisp convert SOURCE DESTINATION
  std::string destination;  ///< SOURCE-wisp
};
ByHand convert_by_hand(const std::string& checkpoint);

/// The folder that --draft names, or, where that is a Hugging Face checkpoint, its conversion (cached_draft
/// in drafts_path()), which is made first if need be: `console` says so. A checkpoint whose vocabulary is not
/// that of the converted folder `target` is refused before it is converted. Nothing else is checked of a
/// folder. Errors name --draft and, where a conversion failed, the way by hand; kInterrupted after Ctrl-C.
Result<HeldDraft> draft_folder(const std::string& draft, const std::string& target, Console& console,
                               const Interrupts& interrupts);

}  // namespace wisp::cli
