#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "ring/messages.hpp"
#include "trace/route_trace.hpp"

namespace wisp::loader {

/// Writes touches, in the order in which the policy sees them, to a routing trace (common/trace). A file that
/// is there is appended to: a loader that follows another goes on in its file, behind a line that says so,
/// since a replay knows nothing of the slots that it found filled.
///
/// A touch says how many rows chose an expert, not which nor with what weight: a member stands in as many
/// lines as rows chose it, `slot` is its place in the set and `weight` is 0. For a single row, as in
/// decoding, that place is the rank of the choice.
class TraceRecorder {
 public:
  /// `expert_bytes`: per layer, 0 = none. `first`: no loader was before this one. Errors: kIo names the file;
  /// kInvalid where it is a pipe, which the next loader could not go on with.
  static Result<std::unique_ptr<TraceRecorder>> open(const std::string& path, const trace::TraceModel& model,
                                                     std::span<const std::uint64_t> expert_bytes, bool first);

  /// One touch. `resident` [set]: whether the policy counted a hit.
  void add(std::uint64_t step, std::uint32_t layer, bool decode, std::span<const ring::TouchMember> set,
           std::span<const std::uint8_t> resident);
  /// What the policy knows from here on is not in the file alone.
  void restart(std::string_view why);
  /// Writes what was added. The first failure is a warning, and the end of the recording.
  void flush();

 private:
  TraceRecorder(std::string path, Fd file, std::span<const std::uint64_t> expert_bytes)
      : path_(std::move(path)),
        file_(std::move(file)),
        expert_bytes_(expert_bytes.begin(), expert_bytes.end()) {}

  std::string path_;
  Fd file_;
  std::vector<std::uint64_t> expert_bytes_;
  std::string text_;
  std::uint32_t layer_ = ~0U;  // of the last touch
};

}  // namespace wisp::loader
