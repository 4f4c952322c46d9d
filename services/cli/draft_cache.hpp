#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "model/convert.hpp"

namespace wisp::cli {

/// A converted folder in use: while `hold` is open, no other process takes it away as stale.
struct HeldDraft {
  std::string folder;  ///< an absolute path
  Fd hold;             ///< its shared lock (flock); none where that is no converted folder
};

/// What a look-up asks and tells. Each may be empty.
struct DraftCacheEvents {
  /// Before a byte is written: where to, what, and why the conversion that is there cannot be used ("": there
  /// is none). An Error ends the look-up, and nothing was written.
  std::function<Status(const std::string& folder, const model::ConvertEstimate& what, const std::string& why)>
      converting;
  std::function<void(const model::ConvertReport&)> converted;
  /// Once, where another process is at the same checkpoint and is waited for.
  std::function<void()> waiting;
  /// Whether to end with kInterrupted; waits up to so many milliseconds for the reason to.
  std::function<bool(int ms)> stop;
  model::ProgressFn progress;
};

/// Where conversions of drafts are kept: drafts/ in the state folder, "" where there is none.
std::string drafts_path();

/// The conversion of the Hugging Face checkpoint `source` that `root` keeps, in the form that `wisp convert`
/// chooses by itself; made where there is none of the checkpoint's present state (model::ConvertEstimate's
/// key: contents of its texts; size, time and inode of its weights; our layout), or where its manifest, the
/// sizes of its files or its texts are not as they were. What an interrupted conversion left whole is taken
/// over. `root` holds a folder for each checkpoint, by a hash of its path, which is locked meanwhile: one
/// process looks up at a time, the others wait. Conversions of other states of the same checkpoint are
/// removed, those that a process holds by the next look-up. Errors: those of model::convert, kIo where `root`
/// cannot be written or a conversion cannot be read, kUnavailable where one that is damaged is held.
Result<HeldDraft> cached_draft(const std::string& source, const std::string& root,
                               const DraftCacheEvents& events);

/// Keeps a converted folder from being taken away, whoever made it. Errors: kIo.
Result<HeldDraft> hold_draft(const std::string& folder);

}  // namespace wisp::cli
