#pragma once
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "services/gateway/text/tokenizer.hpp"

namespace wisp::text {

/// Keeps control tokens that a client wrote apart from those that a chat template writes. Before rendering,
/// every control token in the client's strings is broken by a mark around a random number that occurs nowhere
/// in them; after rendering, the marks are taken out of what the template's own control tokens leave as
/// ordinary text.
class PromptGuard {
 public:
  static constexpr std::size_t kMaxDepth = 100;  // nesting of the client's JSON; bounds our recursion

  /// Whether `value` is nested at most kMaxDepth deep. Ask before anything copies or prints JSON from a
  /// client: both recurse.
  static bool is_shallow(const nlohmann::ordered_json& value, std::size_t depth = 0);

  /// `source` is all JSON that will be guarded, and shallow: the random number is drawn so that it does not
  /// occur there.
  PromptGuard(const Tokenizer& tokenizer, const nlohmann::ordered_json& source);

  /// Breaks the control tokens in every string and every key of `value`, which is_shallow. kInvalid for a
  /// string that is not UTF-8.
  Status guard(nlohmann::ordered_json& value) const;

  /// `text` without marks.
  std::string mend(std::string_view text) const;

 private:
  std::string broken(std::string_view text) const;

  const Tokenizer& tokenizer_;
  std::string open_;  // of a mark: a private-use character and the number
};

}  // namespace wisp::text
