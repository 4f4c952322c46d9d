#include "services/gateway/text/pre_tokenizer.hpp"

#include <oniguruma.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "services/gateway/text/unicode.hpp"

namespace wisp::text {
namespace {

using Json = nlohmann::json;
using Range = PreTokenizer::Range;

/// GPT-2's pattern, which ByteLevel with use_regex means.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Kind { kRegex, kLiteral, kDigits, kKnown };
enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// A stretch of text, and whether the pattern matched it.
struct Stretch {
  Range range;
  bool match;
};

struct FreeRegex {
  void operator()(regex_t* regex) const { onig_free(regex); }
};
struct FreeParam {
  void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};
struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
using Regex = std::unique_ptr<regex_t, FreeRegex>;

const OnigUChar* bytes_of(const char* p) {
  return reinterpret_cast<const OnigUChar*>(p);
}

Result<Regex> compile(std::string_view pattern) {
  if (pattern.size() > PreTokenizer::kMaxPatternBytes) {
    return invalid("pattern longer than " + std::to_string(PreTokenizer::kMaxPatternBytes) + " bytes");
  }
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
  regex_t* raw = nullptr;
  OnigErrorInfo info{};
  // Ruby's syntax is what the reference tokenizers compile these patterns with; it has no call-outs into
  // code.
  const int rc = onig_new(&raw, bytes_of(pattern.data()), bytes_of(pattern.data() + pattern.size()),
                          ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
  Regex regex(raw);
  if (rc != ONIG_NORMAL) {
    OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN] = {};
    onig_error_code_to_str(text, rc, &info);
    return invalid("pattern is not a valid regular expression: " +
                   std::string(reinterpret_cast<char*>(text)));
  }
  return regex;
}

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// State of one split(): match limits, and the CPU time spent so far.
class Search {
 public:
  Search() : param_(onig_new_match_param()), region_(onig_region_new()), started_(thread_cpu_seconds()) {
    if (!ready()) return;
    onig_initialize_match_param(param_.get());
    onig_set_match_stack_limit_size_of_match_param(param_.get(), PreTokenizer::kMaxStack);
    onig_set_retry_limit_in_match_of_match_param(param_.get(), PreTokenizer::kMaxRetries);
    onig_set_retry_limit_in_search_of_match_param(param_.get(), 4 * PreTokenizer::kMaxRetries);
  }

  bool ready() const { return param_ != nullptr && region_ != nullptr; }

  /// Next match in [from, text.size()), or from == npos when there is none.
  Result<Range> next(regex_t* regex, std::string_view text, std::size_t from) {
    if (++searches_ % 64 == 0 && thread_cpu_seconds() - started_ > PreTokenizer::kMaxCpuSeconds) {
      return exhausted("the split pattern of tokenizer.json takes too long on this text");
    }
    // A window bounds the matcher's stack, which grows with the length of a match.
    const std::size_t window = std::min(text.size(), boundary(text, from + PreTokenizer::kWindowBytes));
    WISP_ASSIGN(Range found, search(regex, text, from, window));
    if (found.begin == std::string_view::npos && window < text.size()) {
      return search(regex, text, from, text.size());
    }
    return found;
  }

 private:
  static std::size_t boundary(std::string_view text, std::size_t pos) {
    if (pos >= text.size()) return text.size();
    while (pos > 0 && (static_cast<std::uint8_t>(text[pos]) & 0xC0U) == 0x80U) --pos;
    return pos;
  }

  Result<Range> search(regex_t* regex, std::string_view text, std::size_t from, std::size_t to) {
    const char* base = text.data();
    const int at = onig_search_with_param(regex, bytes_of(base), bytes_of(base + to), bytes_of(base + from),
                                          bytes_of(base + to), region_.get(), ONIG_OPTION_NONE, param_.get());
    if (at == ONIG_MISMATCH) return Range{std::string_view::npos, std::string_view::npos};
    if (at < 0) {
      OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN] = {};
      onig_error_code_to_str(message, at);
      return exhausted("the split pattern of tokenizer.json is too costly for this text: " +
                       std::string(reinterpret_cast<char*>(message)));
    }
    return Range{static_cast<std::size_t>(region_->beg[0]), static_cast<std::size_t>(region_->end[0])};
  }

  std::unique_ptr<OnigMatchParam, FreeParam> param_;
  std::unique_ptr<OnigRegion, FreeRegion> region_;
  double started_;
  unsigned searches_ = 0;
};

void push_match(std::vector<Stretch>& out, std::size_t& done, Range match) {
  if (match.begin > done) out.push_back({{done, match.begin}, false});
  out.push_back({match, true});
  done = match.end;
}

/// All matches of a regex, with the text between them. An empty match cuts, but not right after a match.
Status find_regex(regex_t* regex, std::string_view text, Search& search, std::vector<Stretch>& out) {
  std::size_t done = 0;
  std::size_t last_end = std::string_view::npos;
  for (std::size_t from = 0; from <= text.size();) {
    WISP_ASSIGN(const Range match, search.next(regex, text, from));
    if (match.begin == std::string_view::npos) break;
    if (match.end > match.begin) {
      from = match.end;
    } else {
      from = match.end;
      if (from < text.size()) {
        next_char(text, from);
      } else {
        ++from;
      }
      if (match.end == last_end) continue;
    }
    last_end = match.end;
    push_match(out, done, match);
  }
  if (done < text.size()) out.push_back({{done, text.size()}, false});
  return {};
}

void find_literal(std::string_view literal, std::string_view text, std::vector<Stretch>& out) {
  std::size_t done = 0;
  for (std::size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, done)) {
    push_match(out, done, {at, at + literal.size()});
  }
  if (done < text.size()) out.push_back({{done, text.size()}, false});
}

void find_digits(std::string_view text, std::vector<Stretch>& out) {
  std::size_t done = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t begin = pos;
    if (is_numeric(next_char(text, pos))) push_match(out, done, {begin, pos});
  }
  if (done < text.size()) out.push_back({{done, text.size()}, false});
}

/// Turns stretches into pieces; `base` is where the split text begins.
void apply_behavior(const std::vector<Stretch>& stretches, Behavior behavior, std::size_t base,
                    std::vector<Range>& out) {
  const std::size_t first = out.size();
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    const auto [range, match] = stretches[i];
    const bool before = i > 0 && stretches[i - 1].match;
    bool join = false;
    switch (behavior) {
      case Behavior::kIsolated:
        break;
      case Behavior::kRemoved:
        if (match) continue;
        break;
      case Behavior::kMergedWithPrevious:
        join = match && !before;
        break;
      case Behavior::kMergedWithNext:
        join = !match && before;
        break;
      case Behavior::kContiguous:
        join = i > 0 && match == before;
        break;
    }
    if (join && out.size() > first) {
      out.back().end = base + range.end;
    } else {
      out.push_back({base + range.begin, base + range.end});
    }
  }
  const auto keep = std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                                   [](const Range& r) { return r.begin == r.end; });
  out.erase(keep, out.end());
}

}  // namespace

struct PreTokenizer::Step {
  Kind kind = Kind::kRegex;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  Regex regex;
  std::string literal;
  std::string pattern;  // kKnown until parse() has joined such steps
  KnownSplit known = nullptr;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

namespace {

using StepPtr = std::unique_ptr<PreTokenizer::Step>;

bool flag(const Json& config, const char* name, bool fallback) {
  const auto it = config.find(name);
  return it != config.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

std::string text_of(const Json& config, const char* name) {
  const auto it = config.find(name);
  return it != config.end() && it->is_string() ? it->get<std::string>() : std::string();
}

Result<Behavior> behavior_of(const Json& config) {
  const std::string name = text_of(config, "behavior");
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return unsupported("Split behavior \"" + name + "\" is not known");
}

Result<StepPtr> parse_split(const Json& config) {
  auto step = std::make_unique<PreTokenizer::Step>();
  WISP_ASSIGN(step->behavior, behavior_of(config));
  step->invert = flag(config, "invert", false);
  const auto pattern = config.find("pattern");
  if (pattern == config.end() || !pattern->is_object()) return invalid("Split has no pattern object");
  const std::string regex = text_of(*pattern, "Regex");
  step->literal = text_of(*pattern, "String");
  const bool isolated = step->behavior == Behavior::kIsolated && !step->invert;
  if (isolated && known_split(regex) != nullptr) {
    step->kind = Kind::kKnown;
    step->pattern = regex;
  } else if (!regex.empty()) {
    WISP_ASSIGN(step->regex, compile(regex));
  } else if (!step->literal.empty()) {
    step->kind = Kind::kLiteral;
  } else {
    return invalid("Split has neither pattern.Regex nor pattern.String");
  }
  return step;
}

/// Flattens Sequences; ByteLevel must come last, because a step after it would see another alphabet.
Status parse_into(const Json& config, std::size_t depth, std::vector<StepPtr>& steps, bool& byte_level) {
  if (!config.is_object()) return invalid("not an object");
  if (depth > PreTokenizer::kMaxSteps || steps.size() >= PreTokenizer::kMaxSteps) {
    return invalid("more than " + std::to_string(PreTokenizer::kMaxSteps) + " steps");
  }
  const std::string type = text_of(config, "type");
  if (byte_level && type != "Sequence") return unsupported("a step (" + type + ") after ByteLevel");
  if (type == "Sequence") {
    const auto parts = config.find("pretokenizers");
    if (parts == config.end() || !parts->is_array()) return invalid("Sequence has no pretokenizers array");
    for (const Json& part : *parts) WISP_TRY(parse_into(part, depth + 1, steps, byte_level));
    return {};
  }
  if (type == "Split") {
    WISP_ASSIGN(StepPtr step, parse_split(config));
    steps.push_back(std::move(step));
    return {};
  }
  if (type == "Digits") {
    auto step = std::make_unique<PreTokenizer::Step>();
    step->kind = Kind::kDigits;
    step->behavior = flag(config, "individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
    steps.push_back(std::move(step));
    return {};
  }
  if (type == "ByteLevel") {
    if (flag(config, "add_prefix_space", true)) return unsupported("ByteLevel with add_prefix_space");
    if (flag(config, "use_regex", true)) {
      auto step = std::make_unique<PreTokenizer::Step>();
      step->kind = Kind::kKnown;
      step->pattern = kByteLevelPattern;
      steps.push_back(std::move(step));
    }
    byte_level = true;
    return {};
  }
  return unsupported("type \"" + type + "\"; this build knows Sequence, Split, Digits and ByteLevel");
}

/// Fills `known` of every such step; of several that are known together the first stands for all.
void join_known(std::vector<StepPtr>& steps) {
  std::vector<StepPtr> out;
  for (std::size_t i = 0; i < steps.size();) {
    std::vector<std::string_view> patterns;
    for (std::size_t j = i; j < steps.size() && steps[j]->kind == Kind::kKnown; ++j)
      patterns.push_back(steps[j]->pattern);
    std::size_t count = 0;
    steps[i]->known = known_split(patterns, count);
    out.push_back(std::move(steps[i]));
    i += std::max<std::size_t>(count, 1);
  }
  steps = std::move(out);
}

}  // namespace

PreTokenizer PreTokenizer::of(KnownSplit split) {
  PreTokenizer out;
  out.steps_.push_back(std::make_unique<Step>());
  out.steps_.back()->kind = Kind::kKnown;
  out.steps_.back()->known = split;
  return out;
}

Result<PreTokenizer> PreTokenizer::parse(const Json& config) {
  PreTokenizer out;
  bool byte_level = false;
  Status parsed = parse_into(config, 0, out.steps_, byte_level);
  if (!parsed) return std::move(parsed).error().within("pre_tokenizer");
  if (!byte_level) return unsupported("pre_tokenizer: no ByteLevel step; only byte-level BPE is supported");
  join_known(out.steps_);
  return out;
}

Status PreTokenizer::split(std::string_view text, std::vector<Range>& out) const {
  out.clear();
  if (text.empty()) return {};
  out.push_back({0, text.size()});
  std::optional<Search> search;  // only where a regex is asked
  std::vector<Range> before;
  std::vector<Stretch> stretches;
  for (const auto& step : steps_) {
    if (step->kind == Kind::kRegex && !search && !search.emplace().ready())
      return exhausted("no memory for the split pattern's match state");
    before.swap(out);
    out.clear();
    for (const Range& range : before) {
      const std::string_view part = text.substr(range.begin, range.end - range.begin);
      stretches.clear();
      switch (step->kind) {
        case Kind::kRegex:
          WISP_TRY(find_regex(step->regex.get(), part, *search, stretches));
          break;
        case Kind::kLiteral:
          find_literal(step->literal, part, stretches);
          break;
        case Kind::kDigits:
          find_digits(part, stretches);
          break;
        case Kind::kKnown:
          step->known(part, range.begin, out);
          continue;
      }
      if (step->invert) {
        for (Stretch& stretch : stretches) stretch.match = !stretch.match;
      }
      apply_behavior(stretches, step->behavior, range.begin, out);
    }
  }
  return {};
}

}  // namespace wisp::text
