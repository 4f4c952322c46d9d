#include "services/router/draft_log.hpp"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace wisp::router {

namespace {
/// Larger than any journal: a line names its record.
constexpr std::uint32_t kMostRecords = 1u << 16;

unsigned of(DraftSource s) {
  return static_cast<unsigned>(s);
}
}  // namespace

LoggedDraftControl::LoggedDraftControl(std::uint32_t records, std::uint32_t fixed, const std::string& path)
    : control_(records, fixed) {
  if (path.empty()) return;
  // A later life of the router goes on in the same file.
  file_.reset(std::fopen(path.c_str(), "ae"));
  if (!file_) spdlog::warn("log of drafts {}: {}", path, std::strerror(errno));
  line("life %u %u", records, fixed);
}

void LoggedDraftControl::line(const char* format, ...) {
  if (!file_) return;
  va_list args;
  va_start(args, format);
  std::vfprintf(file_.get(), format, args);
  va_end(args);
  std::fputc('\n', file_.get());
  std::fflush(file_.get());
}

void LoggedDraftControl::begin(std::uint32_t record) {
  line("begin %u", record);
  control_.begin(record);
}

void LoggedDraftControl::judge(std::uint32_t record, DraftSource source, std::uint32_t at, bool stood) {
  line("judge %u %u %u %d", record, of(source), at, stood ? 1 : 0);
  control_.judge(record, source, at, stood);
}

void LoggedDraftControl::answered(DraftSource source, std::uint64_t ns, std::uint64_t cpu_ns,
                                  std::uint32_t count) {
  line("answered %u %lu %lu %u", of(source), ns, cpu_ns, count);
  control_.answered(source, ns, cpu_ns, count);
}

void LoggedDraftControl::step(std::uint32_t sequences, std::uint32_t drafts, std::uint64_t ns,
                              std::uint64_t waited_ns, std::uint32_t tokens) {
  line("step %u %u %lu %lu %u", sequences, drafts, ns, waited_ns, tokens);
  control_.step(sequences, drafts, ns, waited_ns, tokens);
}

std::span<const std::uint32_t> LoggedDraftControl::choose(std::uint32_t sequences,
                                                          std::span<const DraftControl::Offer> offers,
                                                          std::uint32_t room) {
  const std::span<const std::uint32_t> chosen = control_.choose(sequences, offers, room);
  if (!file_) return chosen;
  std::string text = "choose " + std::to_string(sequences) + " " + std::to_string(room) + " " +
                     std::to_string(offers.size());
  for (std::size_t i = 0; i < offers.size(); ++i)
    text += " " + std::to_string(offers[i].record) + " " + std::to_string(of(offers[i].source)) + " " +
            std::to_string(offers[i].at) + " " + std::to_string(offers[i].count) + " " +
            std::to_string(chosen[i]);
  line("%s", text.c_str());
  return chosen;
}

DraftControl::Wish LoggedDraftControl::wish(std::uint32_t record, DraftSource source) {
  const DraftControl::Wish w = control_.wish(record, source);
  line("wish %u %u %u %lu", record, of(source), w.count, w.patience_ns);
  return w;
}

bool LoggedDraftControl::worth_asking(std::uint32_t record, DraftSource source, std::uint32_t now_token,
                                      bool beside) {
  const bool worth = control_.worth_asking(record, source, now_token, beside);
  line("ask %u %u %u %d %d", record, of(source), now_token, beside ? 1 : 0, worth ? 1 : 0);
  return worth;
}

namespace {

/// One log, line by line.
class Replay {
 public:
  explicit Replay(const std::function<void(const std::string&)>& show) : show_(show) {}

  bool take(const std::string& text) {
    std::istringstream in(text);
    std::string what;
    in >> what;
    if (what == "life") return life(in);
    if (!control_) return false;
    if (what == "begin") return begin(in);
    if (what == "judge") return judge(in);
    if (what == "answered") return answered(in);
    if (what == "step") return step(in);
    if (what == "choose") return choose(in);
    if (what == "wish") return wish(in);
    return what == "ask" && ask(in);
  }
  const DraftReplay& result() const { return r_; }

 private:
  bool life(std::istream& in) {
    std::uint32_t fixed = 0;
    if (!(in >> records_ >> fixed) || records_ > kMostRecords) return false;
    control_.emplace(records_, fixed);
    return true;
  }
  bool record(std::istream& in, std::uint32_t& i) { return (in >> i) && i < records_; }
  static bool source(std::istream& in, DraftSource& s) {
    unsigned n = 0;
    if (!(in >> n) || n >= kDraftSources) return false;
    s = static_cast<DraftSource>(n);
    return true;
  }
  void decide(bool same) {
    ++r_.decisions;
    r_.different += same ? 0 : 1;
  }
  bool begin(std::istream& in) {
    std::uint32_t i = 0;
    if (!record(in, i)) return false;
    control_->begin(i);
    return true;
  }
  bool judge(std::istream& in) {
    std::uint32_t i = 0, at = 0, stood = 0;
    DraftSource s{};
    if (!record(in, i) || !source(in, s) || !(in >> at >> stood)) return false;
    control_->judge(i, s, at, stood != 0);
    return true;
  }
  bool answered(std::istream& in) {
    std::uint64_t ns = 0, cpu = 0;
    std::uint32_t count = 0;
    DraftSource s{};
    if (!source(in, s) || !(in >> ns >> cpu >> count)) return false;
    control_->answered(s, ns, cpu, count);
    return true;
  }
  bool step(std::istream& in) {
    std::uint32_t sequences = 0, drafts = 0, tokens = 0;
    std::uint64_t ns = 0, waited = 0;
    if (!(in >> sequences >> drafts >> ns >> waited >> tokens) || sequences == 0) return false;
    control_->step(sequences, drafts, ns, waited, tokens);
    ++r_.steps;
    r_.tokens += tokens;
    r_.ns += ns;
    r_.waited_ns += waited;
    if (drafts == 0) return true;
    ++r_.draft_steps;
    r_.drafted += drafts;
    r_.draft_tokens += tokens;
    r_.draft_ns += ns;
    return true;
  }
  bool choose(std::istream& in) {
    std::uint32_t sequences = 0, room = 0, n = 0;
    if (!(in >> sequences >> room >> n) || sequences == 0 || n > records_) return false;
    std::vector<DraftControl::Offer> offers(n);
    std::vector<std::uint32_t> chosen(n);
    for (std::uint32_t i = 0; i < n; ++i)
      if (!record(in, offers[i].record) || !source(in, offers[i].source) ||
          !(in >> offers[i].at >> offers[i].count >> chosen[i]))
        return false;
    const auto again = control_->choose(sequences, offers, room);
    decide(std::equal(again.begin(), again.end(), chosen.begin(), chosen.end()));
    for (std::uint32_t i = 0; show_ && i < n; ++i) {
      const DraftControl::Offer& o = offers[i];
      char text[160];
      std::snprintf(text, sizeof text,
                    "%8lu  record %-3u source %u  at hand %2u  tried %u  chance %.2f  plain %.2f ms  ratio "
                    "%.2f  purse %.2f ms",
                    r_.steps, o.record, of(o.source), o.count, chosen[i],
                    control_->chance(o.record, o.source, o.at), control_->plain_ns(sequences) / 1e6,
                    control_->ratio(sequences, chosen[i]), control_->purse_ns() / 1e6);
      show_(text);
    }
    return true;
  }
  bool wish(std::istream& in) {
    std::uint32_t i = 0, count = 0;
    std::uint64_t patience = 0;
    DraftSource s{};
    if (!record(in, i) || !source(in, s) || !(in >> count >> patience)) return false;
    const DraftControl::Wish w = control_->wish(i, s);
    decide(w.count == count && w.patience_ns == patience);
    return true;
  }
  bool ask(std::istream& in) {
    std::uint32_t i = 0, token = 0, beside = 0, worth = 0;
    DraftSource s{};
    if (!record(in, i) || !source(in, s) || !(in >> token >> beside >> worth)) return false;
    decide(control_->worth_asking(i, s, token, beside != 0) == (worth != 0));
    return true;
  }

  const std::function<void(const std::string&)>& show_;
  std::optional<DraftControl> control_;
  std::uint32_t records_ = 0;
  DraftReplay r_;
};

}  // namespace

Result<DraftReplay> replay_drafts(const std::string& path,
                                  const std::function<void(const std::string&)>& show) {
  std::ifstream file(path);
  if (!file) return not_found("log of drafts " + path + " cannot be read");
  Replay replay(show);
  std::string text;
  for (std::size_t n = 1; std::getline(file, text); ++n) {
    // A line without its end is that of a router that was killed.
    if (file.eof()) break;
    if (!replay.take(text))
      return corrupt(path + ": line " + std::to_string(n) +
                     " is not one of a log of drafts: " + text.substr(0, 80));
  }
  return replay.result();
}

}  // namespace wisp::router
