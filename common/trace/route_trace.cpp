#include "trace/route_trace.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/check.hpp"
#include "base/fd.hpp"

namespace wisp::trace {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 18;
constexpr std::size_t kMaxLine = 4096;

/// The next field of `rest`, up to a comma or the end.
std::string_view take_field(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(','), rest.size());
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return field;
}

template <class T>
bool parse_whole(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 40)) out += c >= ' ' && c < 127 ? c : '?';
  return text.size() > 40 ? out + "..." : out;
}

Error bad_field(const char* name, std::string_view text, const char* wanted) {
  return invalid(std::string(name) + " is \"" + shown(text) + "\", not " + wanted);
}

/// The value of `name=` among the words of a remark; empty where it is not there.
std::string_view word_of(std::string_view remark, std::string_view name) {
  for (std::size_t at = remark.find(name); at != std::string_view::npos; at = remark.find(name, at + 1)) {
    const bool begins = at > 0 && remark[at - 1] == ' ';
    if (!begins || at + name.size() >= remark.size() || remark[at + name.size()] != '=') continue;
    const std::string_view value = remark.substr(at + name.size() + 1);
    return value.substr(0, std::min(value.find(' '), value.size()));
  }
  return {};
}

/// Builds touches out of lines.
class Collector {
 public:
  explicit Collector(const LineSeen& seen) : seen_(seen) {}

  Status take(std::string_view line) {
    if (line.empty()) return {};
    if (line[0] == '#') return remark(line);
    if (line == kColumns) {
      open_ = false;
      return {};
    }
    WISP_ASSIGN(const RouteLine r, parse_line(line));
    WISP_TRY(within("layer", r.layer, "n_layer", said_.layers));
    WISP_TRY(within("expert", r.expert, "n_expert", said_.experts));
    model_.layers = std::max(model_.layers, r.layer + 1);
    model_.experts = std::max(model_.experts, r.expert + 1);
    most_ranks_ = std::max(most_ranks_, r.rank + 1);
    WISP_TRY(check_size());
    add(r);
    if (seen_) seen_(r);
    return {};
  }

  Result<Trace> end() {
    if (trace_.touches.empty()) return invalid("no line names an expert");
    if (model_.top_k == 0) model_.top_k = most_ranks_;
    trace_.model = std::move(model_);
    return std::move(trace_);
  }

 private:
  /// Holds a number of a line against what the header has said, if it has.
  static Status within(const char* what, std::uint32_t number, const char* key, std::uint32_t said) {
    if (said == 0 || number < said) return {};
    return invalid(std::string(what) + " " + std::to_string(number) + " contradicts the header, which says " +
                   key + "=" + std::to_string(said));
  }

  Status remark(std::string_view line) {
    const bool restart = line.starts_with(kRestartLine);
    if (restart) ++trace_.restarts;
    if (line == kTouchLine || line == kFirstLine || restart) open_ = false;
    if (line.substr(0, 8) == "# model=") model_.name = word_of(line, "model");
    const auto number = [&](std::string_view name, std::uint32_t most, std::uint32_t& out) -> Status {
      const std::string_view text = word_of(line, name);
      std::uint32_t n = 0;
      if (text.empty()) return {};
      if (!parse_whole(text, n) || n > most)
        return invalid(std::string(name) + " is \"" + shown(text) + "\", not a number up to " +
                       std::to_string(most));
      out = n;
      return {};
    };
    WISP_TRY(number("n_layer", kMaxLayers, said_.layers));
    WISP_TRY(number("n_expert", kMaxExperts, said_.experts));
    WISP_TRY(number("n_expert_used", kMaxExperts, said_.top_k));
    model_.layers = std::max(model_.layers, said_.layers);
    model_.experts = std::max(model_.experts, said_.experts);
    model_.top_k = std::max(model_.top_k, said_.top_k);
    return check_size();
  }

  Status check_size() const {
    const std::uint64_t keys = std::uint64_t{model_.layers} * model_.experts;
    if (keys <= kMaxKeys) return {};
    return invalid(std::to_string(model_.layers) + " layers of " + std::to_string(model_.experts) +
                   " experts are more than a replay has tables for (" + std::to_string(kMaxKeys) +
                   " experts in all)");
  }

  void add(const RouteLine& r) {
    if (!open_ || trace_.touches.back().layer != r.layer) {
      trace_.touches.push_back({r.layer, r.decode, trace_.accesses.size(), 0});
      open_ = true;
      ++stamp_;
    }
    Touch& t = trace_.touches.back();
    if (place_.size() < model_.experts) place_.resize(model_.experts, {0, 0});
    auto& [stamp, at] = place_[r.expert];
    if (stamp != stamp_) {
      stamp = stamp_;
      at = trace_.accesses.size();
      trace_.accesses.push_back({r.expert, 0});
      ++t.count;
    }
    ++trace_.accesses[at].rows;
  }

  const LineSeen& seen_;
  Trace trace_;
  TraceModel model_;
  TraceModel said_;  // by the model's lines
  std::uint32_t most_ranks_ = 1;
  bool open_ = false;
  std::uint64_t stamp_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> place_;  // [experts] touch and access
};

/// Lines of a descriptor, a block at a time.
class FileLines {
 public:
  explicit FileLines(int fd) : fd_(fd) { buffer_.reserve(kBlock + kMaxLine); }

  Result<bool> next(std::string_view& line) {
    for (;;) {
      const char* const begin = buffer_.data() + at_;
      const std::size_t left = buffer_.size() - at_;
      if (const void* end = left == 0 ? nullptr : std::memchr(begin, '\n', left)) {
        line = {begin, static_cast<std::size_t>(static_cast<const char*>(end) - begin)};
        at_ += line.size() + 1;
        return true;
      }
      if (ended_) {
        line = {begin, left};
        cut_ = cut_ || left > 0;
        at_ = buffer_.size();
        return left > 0;
      }
      if (left > kMaxLine) return invalid("longer than " + std::to_string(kMaxLine) + " bytes");
      WISP_TRY(fill());
    }
  }

  /// Whether the last line had no end.
  bool cut() const { return cut_; }

 private:
  Status fill() {
    buffer_.erase(0, at_);
    at_ = 0;
    const std::size_t old = buffer_.size();
    buffer_.resize(old + kBlock);
    ssize_t n;
    do n = ::read(fd_, buffer_.data() + old, kBlock);
    while (n < 0 && errno == EINTR);
    const int error = errno;
    buffer_.resize(old + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0) return io_error(std::strerror(error));
    ended_ = n == 0;
    return {};
  }

  int fd_;
  std::string buffer_;
  std::size_t at_ = 0;
  bool ended_ = false;
  bool cut_ = false;
};

}  // namespace

Result<RouteLine> parse_line(std::string_view line) {
  if (std::count(line.begin(), line.end(), ',') != 8)
    return invalid("\"" + shown(line) +
                   "\" is no line of a routing trace, which has 9 fields: " + std::string(kColumns));
  std::string_view rest = line;
  RouteLine r;
  const auto number = [&](const char* name, auto& out, std::uint64_t most) -> Status {
    const std::string_view text = take_field(rest);
    std::uint64_t n = 0;
    if (!parse_whole(text, n) || n > most)
      return bad_field(name, text, ("a whole number up to " + std::to_string(most)).c_str());
    out = static_cast<std::remove_reference_t<decltype(out)>>(n);
    return {};
  };
  constexpr std::uint64_t kWord = std::numeric_limits<std::uint32_t>::max() - 1;
  WISP_TRY(number("turn", r.turn, kWord));
  WISP_TRY(number("phase", r.decode, 1));
  WISP_TRY(number("step", r.step, kWord));
  WISP_TRY(number("layer", r.layer, kMaxLayers - 1));
  WISP_TRY(number("slot", r.rank, kMaxExperts - 1));
  WISP_TRY(number("expert", r.expert, kMaxExperts - 1));
  const std::string_view weight = take_field(rest);
  if (!parse_whole(weight, r.weight)) return bad_field("weight", weight, "a number");
  WISP_TRY(number("residency", r.resident, 1));
  WISP_TRY(number("expert_bytes", r.expert_bytes, std::numeric_limits<std::uint64_t>::max()));
  return r;
}

Result<Trace> read_trace(const NextLine& next, const LineSeen& seen) {
  Collector collector(seen);
  std::string_view line;
  for (std::uint64_t number = 1;; ++number) {
    const std::string where = "line " + std::to_string(number);
    auto more = next(line);
    if (!more.ok()) return std::move(more).error().within(where);
    if (!*more) break;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (Status s = collector.take(line); !s.ok()) return std::move(s).error().within(where);
  }
  return collector.end();
}

Result<Trace> read_trace(const std::string& path, const LineSeen& seen) {
  const bool standard = path == "-";
  Fd file;
  if (!standard) {
    file.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) return io_error(path + ": " + std::strerror(errno));
  }
  FileLines lines(standard ? STDIN_FILENO : file.get());
  auto trace = read_trace([&](std::string_view& line) { return lines.next(line); }, seen);
  if (!trace.ok()) {
    if (lines.cut()) trace.error().text += "; the file ends in the middle of this line";
    return std::move(trace).error().within(standard ? "standard input" : path);
  }
  trace->cut = lines.cut();
  return trace;
}

std::string describe_model(const TraceModel& m, std::span<const std::uint64_t> expert_bytes) {
  std::string out(kFirstLine);
  std::string name = m.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c <= ' '; }, '_');
  out += "\n# model=" + name + " n_layer=" + std::to_string(m.layers) +
         " n_expert=" + std::to_string(m.experts) + " n_expert_used=" + std::to_string(m.top_k) + "\n";
  for (std::size_t l = 0; l < expert_bytes.size(); ++l)
    if (expert_bytes[l] != 0)
      out += "# layer=" + std::to_string(l) + " expert_bytes=" + std::to_string(expert_bytes[l]) + "\n";
  return out.append(kColumns) + "\n";
}

void append_line(std::string& out, const RouteLine& r) {
  char text[160];
  const int n = std::snprintf(text, sizeof text, "%u,%d,%u,%u,%u,%u,%.6f,%d,%llu\n", r.turn, r.decode ? 1 : 0,
                              r.step, r.layer, r.rank, r.expert, static_cast<double>(r.weight),
                              r.resident ? 1 : 0, static_cast<unsigned long long>(r.expert_bytes));
  WISP_CHECK(n > 0 && static_cast<std::size_t>(n) < sizeof text);
  out.append(text, static_cast<std::size_t>(n));
}

}  // namespace wisp::trace
