#include "services/gateway/text/utf8_stream.hpp"

#include <utility>

#include "services/gateway/text/unicode.hpp"

namespace wisp::text {
namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string input = std::exchange(held_, {});
  input.append(bytes);
  std::string out;
  out.reserve(input.size());
  for (std::size_t pos = 0; pos < input.size();) {
    const Utf8Step step = utf8_step(input, pos);
    if (step.kind == Utf8Kind::kIncomplete) {
      held_ = input.substr(pos);
      break;
    }
    if (step.kind == Utf8Kind::kComplete) {
      out.append(input, pos, step.size);
    } else {
      out.append(kReplacement);
    }
    pos += step.size;
  }
  return out;
}

std::string Utf8Stream::flush() {
  const bool held = !held_.empty();
  held_.clear();
  return held ? std::string(kReplacement) : std::string();
}

}  // namespace wisp::text
