#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.hpp"
#include "services/router/draft_control.hpp"

namespace wisp::router {

/// A controller whose calls and answers are written down, a line each, where a file was asked for. What is in
/// such a file decides all that the controller does: replay_drafts() does it again.
class LoggedDraftControl {
 public:
  /// `path`: "" = no log. A file that cannot be written is said once; drafts go on without it.
  LoggedDraftControl(std::uint32_t records, std::uint32_t fixed, const std::string& path);

  void begin(std::uint32_t record);
  void judge(std::uint32_t record, DraftSource source, std::uint32_t at, bool stood);
  void answered(DraftSource source, std::uint64_t ns, std::uint64_t cpu_ns, std::uint32_t count);
  void step(std::uint32_t sequences, std::uint32_t drafts, std::uint64_t ns, std::uint64_t waited_ns,
            std::uint32_t tokens);
  std::span<const std::uint32_t> choose(std::uint32_t sequences, std::span<const DraftControl::Offer> offers,
                                        std::uint32_t room);
  DraftControl::Wish wish(std::uint32_t record, DraftSource source);
  bool worth_asking(std::uint32_t record, DraftSource source, std::uint32_t now_token, bool beside);
  double chance(std::uint32_t record, DraftSource source, std::uint32_t at) const {
    return control_.chance(record, source, at);
  }
  std::uint32_t fixed() const { return control_.fixed(); }

 private:
  __attribute__((format(printf, 2, 3))) void line(const char* format, ...);

  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  DraftControl control_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// What a log says.
struct DraftReplay {
  std::uint64_t decisions = 0;  ///< answers of the controller
  std::uint64_t different = 0;  ///< of them, that a replay answers otherwise
  std::uint64_t steps = 0, draft_steps = 0, drafted = 0, tokens = 0, draft_tokens = 0;
  std::uint64_t ns = 0, draft_ns = 0, waited_ns = 0;
};
/// Goes through the log at `path` with a controller of its own. `show`, if given, is called with each choice
/// of a number of drafts as a line for people. Errors: kNotFound, kCorrupt with the line.
Result<DraftReplay> replay_drafts(const std::string& path,
                                  const std::function<void(const std::string&)>& show = {});

}  // namespace wisp::router
