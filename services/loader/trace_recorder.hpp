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

/// Writes touches, in the order in which the policy sees them, to a routing trace (common/trace). The first
/// loader begins under another name, and gives the file its own with the first touch: what lies there is
/// replaced by a recording, never by nothing. A loader that follows another goes on in its file, behind a
/// line that says so, since a replay knows nothing of the slots that it found filled.
///
/// A row's choices stand in its order: `turn` is the number of the request, `step` the position of the row in
/// it, `slot` the rank of the choice. `phase` is that of the touch, all of whose rows decode or which has
/// rows of a prompt; so a touch is read back as the policy saw it. A touch that does not say what its rows
/// chose has a line for each row of a member instead, with the number of the engine's step and without a
/// weight.
class TraceRecorder {
 public:
  /// `expert_bytes`: per layer, 0 = none. `first`: no loader was before this one. Errors: kIo names the file;
  /// kInvalid where it is a pipe, which the next loader could not go on with.
  static Result<std::unique_ptr<TraceRecorder>> open(const std::string& path, const trace::TraceModel& model,
                                                     std::span<const std::uint64_t> expert_bytes, bool first);

  /// The name of a recording of `path` without a touch. Whoever made the run removes it.
  static std::string unfinished(const std::string& path) { return path + ".recording"; }

  struct Touch {
    std::uint64_t step = 0;
    std::uint32_t layer = 0;
    bool decode = false;
    std::span<const ring::TouchMember> set;
    std::span<const std::uint8_t> resident;      ///< [set] whether the policy counted a hit
    std::span<const ring::TouchRow> rows;        ///< empty where the touch does not say
    std::span<const ring::TouchChoice> choices;  ///< [rows, top_k]
  };
  /// It is in the file when this returns: who waits for the touch to be taken finds it there.
  void add(const Touch& touch);
  /// What the policy knows from here on is not in the file alone.
  void restart(std::string_view why);
  /// Writes what restart() added. The first failure is a warning, and the end of the recording.
  void flush();
  /// Whether it has ended early.
  bool lost() const { return !file_.valid(); }

 private:
  TraceRecorder(std::string path, Fd file, bool named, std::span<const std::uint64_t> expert_bytes,
                std::uint32_t experts)
      : path_(std::move(path)),
        file_(std::move(file)),
        named_(named),
        expert_bytes_(expert_bytes.begin(), expert_bytes.end()),
        resident_(experts, 0) {}
  void add_rows(const Touch& touch);
  void add_members(const Touch& touch);
  void give_name();
  void end(const char* why);

  std::string path_;
  Fd file_;
  bool named_;  // file_ lies at path_
  std::vector<std::uint64_t> expert_bytes_;
  std::vector<std::uint8_t> resident_;  // [experts] of the touch at hand
  std::string text_;
  std::uint32_t layer_ = ~0U;  // of the last touch
};

}  // namespace wisp::loader
