#include "services/cli/draft_folder.hpp"

#include <malloc.h>
#include <poll.h>

#include <filesystem>

#include "services/cli/model_progress.hpp"
#include "services/gateway/text/tokenizer_folder.hpp"
#include "services/gateway/text/vocabulary.hpp"

namespace wisp::cli {

namespace fs = std::filesystem;

namespace {

/// Whether the checkpoint, which has so many rows, can draft for `target` at all.
Status compare(const std::string& target, const std::string& checkpoint, std::uint32_t rows) {
  text::Vocabulary draft{checkpoint, rows, {}};
  WISP_ASSIGN(draft.tokenizer, text::load_tokenizer(checkpoint));
  WISP_ASSIGN(const text::Vocabulary model, text::load_vocabulary(target));
  return text::compare_vocabularies(model, draft);
}

std::string way_out(const std::string& checkpoint) {
  const ByHand by_hand = convert_by_hand(checkpoint);
  return "convert it by hand: " + by_hand.command + ", and give --draft " + by_hand.destination;
}

}  // namespace

ByHand convert_by_hand(const std::string& checkpoint) {
  fs::path source = fs::path(checkpoint).lexically_normal();
  if (!source.has_filename()) source = source.parent_path();
  const std::string destination = source.string() + "-wisp";
  return {"wisp convert " + shell_word(source.string()) + " " + shell_word(destination), destination};
}

Result<HeldDraft> draft_folder(const std::string& draft, const std::string& target, Console& console,
                               const Interrupts& interrupts) {
  const std::string option = "--draft " + draft;
  if (model::is_wisp_folder(draft) || !model::is_hf_folder(draft)) {
    std::error_code error;
    const fs::path absolute = fs::absolute(draft, error);
    if (error) return io_error(option + ": " + error.message());
    if (!model::is_wisp_folder(draft))
      return HeldDraft{absolute.string(), Fd()};  // whoever loads it says why not
    auto held = hold_draft(absolute.string());
    if (!held.ok()) return std::move(held).error().within(option);
    return held;
  }
  const std::string root = drafts_path();
  if (root.empty())
    return not_found(option +
                     " is a Hugging Face checkpoint, and neither XDG_STATE_HOME nor HOME is an absolute "
                     "path where its conversion could be kept; " +
                     way_out(draft));

  bool refused = false;  // nothing that a conversion elsewhere would mend
  ByteProgress progress("converting the draft");
  DraftCacheEvents events;
  events.converting = [&](const std::string& folder, const model::ConvertEstimate& what,
                          const std::string& why) -> Status {
    const Status same = compare(target, draft, what.vocab);
    refused = !same.ok();
    WISP_TRY(same);
    if (!why.empty()) console.notice(why + ": the draft is converted again");
    console.notice(option + " is a Hugging Face checkpoint. It is converted once, to " + folder + " (" +
                   show_bytes(static_cast<double>(what.bytes)) + "); or " + way_out(draft));
    return {};
  };
  events.converted = [&](const model::ConvertReport& report) {
    progress.clear();
    for (const std::string& note : report.notes) console.notice("the draft: " + note);
  };
  events.waiting = [&] { console.notice("another process is at the draft " + draft + "; waiting for it"); };
  events.stop = [&](int ms) {
    pollfd fd{interrupts.fd(), POLLIN, 0};
    return interrupts.came() || (ms > 0 && ::poll(&fd, 1, ms) > 0 && interrupts.came());
  };
  events.progress = std::ref(progress);
  auto held = cached_draft(draft, root, events);
  ::malloc_trim(0);  // a conversion's buffers are no part of the plan that is made next
  if (held.ok()) return held;
  Error failed = std::move(held).error();
  const bool helps = failed.code == ErrorCode::kIo || failed.code == ErrorCode::kExhausted;
  if (helps && !refused) failed.text += "; " + way_out(draft);
  return std::move(failed).within(option);
}

}  // namespace wisp::cli
